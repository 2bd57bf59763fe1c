#pragma once

#include "kernels/core/device.cuh"
#include "kernels/core/device_kernels.h"
#include "kernels/moe/plan_args.h"
#include "kernels/moe/plan_scratch.h"

// moe::Planner in four launches. What decides is integers and double precision of few operations,
// in an order that does not depend on who does what: so the active set and the ids are the
// planner's.
//
//   RankRows     a warp a row: its state, its scores, its own top-k, its mass
//   SelectSets   one block, a thread an expert: census and bypass; per policy the columns, and what
//   it
//                selects; of lynx, how the batch likes each expert
//   Vote         a warp a row: the votes of lynx. The last block: rows that find too few experts
//   AssignRows   a warp a row: the best of the active set, and weights. The last block: guard,
//                compaction, results
namespace lynx::kernels::device {

using internal::kPlanWords;
using internal::PlanProgress;
using internal::PlanRowState;
using internal::PlanScratch;

inline constexpr int kPlanWarps = 4;  // Of the launches with a warp a row.
inline constexpr int kPlanThreads = kPlanWarps * 32;
inline constexpr float kInf = __builtin_huge_valf();
inline constexpr uint64_t kMassUnit = uint64_t{1} << 24;

// --- Numbers, as common/moe/gate_math.cc ---

__device__ inline float GateExp(float x) {
  if (x != x) return x;
  if (x < -87.3f) return 0.0f;
  const float n = rintf(x * 1.44269504f);
  float r = fmaf(n, -0.693359375f, x);
  r = fmaf(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = fmaf(p, r, 1.3981999507e-3f);
  p = fmaf(p, r, 8.3334519073e-3f);
  p = fmaf(p, r, 4.1665795894e-2f);
  p = fmaf(p, r, 1.6666665459e-1f);
  p = fmaf(p, r, 5.0000001201e-1f);
  p = fmaf(p, r * r, r) + 1.0f;
  return p * __uint_as_float(static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23);
}
__device__ inline float GateSigmoid(float x) {
  return GateExp(fminf(x, 0.0f)) / (1.0f + GateExp(-fabsf(x)));
}

// --- Sets of experts, a bit each ---

__device__ inline bool Holds(const uint32_t* set, int expert) {
  return (set[expert / 32] >> (expert % 32) & 1u) != 0;
}
__device__ inline void Put(uint32_t* set, int expert) {
  atomicOr(&set[expert / 32], 1u << (expert % 32));
}
__device__ inline int Size(const uint32_t* set) {
  int size = 0;
  for (int word = 0; word < kPlanWords; ++word) size += __popc(set[word]);
  return size;
}

// --- One row, by a warp ---

// What an expert is ranked by: higher first, then by `minor`, then the lower id. 0 in both: not at
// all.
struct RankKey {
  uint32_t major;
  uint32_t minor;
};

// The first at most `k` experts by key, best first, to out; how many. Lane l looks at experts l,
// l + 32, ...
template <typename KeyOf>
__device__ int WarpTop(int experts, int k, int* out, const KeyOf& key_of) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  uint32_t taken = 0;
  for (int held = 0; held < k; ++held) {
    RankKey best{0, 0};
    int mine = -1;
    for (int i = 0, e = lane; e < experts; ++i, e += 32) {
      if ((taken >> i & 1u) != 0) continue;
      const RankKey key = key_of(e);
      if (key.major > best.major || (key.major == best.major && key.minor > best.minor)) {
        best = key;
        mine = e;
      }
    }
    const uint32_t major = __reduce_max_sync(kAllLanes, best.major);
    const uint32_t minor = __reduce_max_sync(kAllLanes, best.major == major ? best.minor : 0);
    if (major == 0 && minor == 0) return held;
    const bool tied = mine >= 0 && best.major == major && best.minor == minor;
    const int winner = static_cast<int>(
        __reduce_min_sync(kAllLanes, tied ? static_cast<uint32_t>(mine) : 0xffffffffu));
    if (winner % 32 == lane) taken |= 1u << (winner / 32);
    if (lane == 0) out[held] = winner;
  }
  __syncwarp();
  return k;
}

// How many scores are above -Inf; -1 where one is NaN or +Inf.
__device__ inline int CountUsable(const float* scores, int experts) {
  uint32_t usable = 0;
  bool wrong = false;
  for (int e = static_cast<int>(threadIdx.x % kWarp); e < experts; e += 32) {
    wrong |= !(scores[e] < kInf);
    usable += scores[e] > -kInf ? 1u : 0u;
  }
  const uint32_t all = __reduce_add_sync(kAllLanes, usable);
  return __any_sync(kAllLanes, wrong) ? -1 : static_cast<int>(all);
}

__device__ inline float Largest(const float* values, int experts) {
  float most = -kInf;
  for (int e = static_cast<int>(threadIdx.x % kWarp); e < experts; e += 32) {
    most = fmaxf(most, values[e]);
  }
  return WarpMax(most);
}

__host__ __device__ inline bool RanksByLogits(const PlanArgs& args) {
  return args.bias == nullptr && args.groups == 1;
}

__device__ inline const float* ScoresOf(const PlanArgs& args, const PlanScratch& scratch, int row) {
  return (RanksByLogits(args) ? args.logits : scratch.scores) +
         static_cast<int64_t>(row) * args.experts;
}

// What a row ranks by where that is not its logits, as Score() of the planner.
__device__ inline void ScoreRow(const PlanArgs& args, const PlanScratch& scratch, int row) {
  const int lane = static_cast<int>(threadIdx.x % kWarp), experts = args.experts;
  const int64_t begin = static_cast<int64_t>(row) * experts;
  const float* logits = args.logits + begin;
  float* scores = scratch.scores + begin;
  float* values = scratch.values + begin;
  float* group_scores = scratch.group_scores + begin;
  const bool by_sum = args.groups > 1 && args.group_sum;
  const bool by_value = by_sum || args.bias != nullptr;
  const float largest = by_value && !args.sigmoid ? Largest(logits, experts) : 0;
  for (int e = lane; e < experts; e += 32) {
    scores[e] = logits[e];
    if (!by_value) continue;
    float value = args.sigmoid ? GateSigmoid(logits[e]) : GateExp(logits[e] - largest);
    if (args.bias != nullptr) value = value + args.bias[e];
    if (logits[e] == -kInf) value = -kInf;
    values[e] = value;
    if (args.bias != nullptr) scores[e] = value;
  }
  if (args.groups == 1) return;
  __syncwarp();
  const float* judged = by_value ? values : logits;
  const int size = experts / args.groups;
  for (int g = lane; g < args.groups; g += 32) {
    float first = -kInf, second = -kInf;
    for (int e = g * size; e < (g + 1) * size; ++e) {
      second = fmaxf(second, fminf(first, judged[e]));
      first = fmaxf(first, judged[e]);
    }
    group_scores[g] = args.group_sum && size > 1 ? first + second : first;
  }
  __syncwarp();
  for (int g = lane; g < args.groups; g += 32) {
    int better = 0;
    for (int other = 0; other < args.groups; ++other) {
      const bool ahead = group_scores[other] > group_scores[g] ||
                         (group_scores[other] == group_scores[g] && other < g);
      better += ahead ? 1 : 0;
    }
    if (better < args.groups_kept) continue;
    for (int e = g * size; e < (g + 1) * size; ++e) scores[e] = -kInf;
  }
}

// Softmax of the row's logits in 2^-24, and what the gate gives where that is a sigmoid.
__device__ inline void WeighExperts(const PlanArgs& args, const PlanScratch& scratch, int row) {
  const int lane = static_cast<int>(threadIdx.x % kWarp), experts = args.experts;
  const int64_t begin = static_cast<int64_t>(row) * experts;
  const float* logits = args.logits + begin;
  constexpr double kFine = static_cast<double>(uint64_t{1} << 40);
  constexpr double kUnit = static_cast<double>(kMassUnit);
  const float largest = Largest(logits, experts);
  int64_t total = 0;
  for (int e = lane; e < experts; e += 32) {
    total += static_cast<int64_t>(static_cast<double>(GateExp(logits[e] - largest)) * kFine + 0.5);
  }
  total = WarpSum(total);
  const double share = kUnit * kFine / static_cast<double>(total);
  for (int e = lane; e < experts; e += 32) {
    // Fused with the addition it would be the same number: only next to 1/2 could that matter, and
    // there `total` is the exponential times 2^65, and the product within 2^-54 of 1/2.
    const double exact = static_cast<double>(GateExp(logits[e] - largest)) * share;
    scratch.mass[begin + e] = static_cast<uint32_t>(static_cast<int32_t>(exact + 0.5));
    if (!args.sigmoid) continue;
    const double score = static_cast<double>(GateSigmoid(logits[e]));
    scratch.gate_mass[begin + e] = static_cast<uint32_t>(score * kUnit + 0.5);
  }
}

__device__ inline bool NeedsMass(const PlanParameters& parameters) {
  bool needs = false;
  for (int p = 0; p < parameters.count; ++p) {
    const PlanPolicy::Kind kind = parameters.policies[p].kind;
    needs |= kind != PlanPolicy::Kind::kPrune && kind != PlanPolicy::Kind::kLynx &&
             kind != PlanPolicy::Kind::kLynxCompat;
  }
  return needs;
}

static __global__ void __launch_bounds__(kPlanThreads)
    RankRows(PlanArgs args, PlanScratch scratch) {
  const int row = static_cast<int>(blockIdx.x * kPlanWarps + threadIdx.x / kWarp);
  const int lane = static_cast<int>(threadIdx.x % kWarp), experts = args.experts;
  if (row >= args.rows) return;
  if (args.valid != nullptr && args.valid[row] == 0) {
    if (lane == 0) {
      scratch.states[row] = PlanRowState::kPadding;
      scratch.masked[row] = 0;
    }
    return;
  }
  const float* logits = args.logits + static_cast<int64_t>(row) * experts;
  int* exact = scratch.exact_ids + static_cast<int64_t>(row) * args.top_k;
  int usable = CountUsable(logits, experts);
  bool bad = usable < args.top_k, masked = usable < experts;
  if (!bad && !RanksByLogits(args)) {
    ScoreRow(args, scratch, row);
    __syncwarp();
    usable = CountUsable(ScoresOf(args, scratch, row), experts);
    bad = usable < args.top_k;
    masked |= usable < experts;
  }
  if (bad) {  // NaN last: the order is total.
    WarpTop(experts, args.top_k, exact, [&](int e) {
      return RankKey{OrderedBits(logits[e] != logits[e] ? -kInf : logits[e]), 0};
    });
  } else {
    const float* scores = ScoresOf(args, scratch, row);
    WarpTop(experts, args.top_k, exact, [&](int e) {
      return RankKey{scores[e] == -kInf ? 0 : OrderedBits(scores[e]), 0};
    });
    if (lane == 0) {
      scratch.best[row] = scores[exact[0]];
      scratch.worst[row] = scores[exact[args.top_k - 1]];
    }
  }
  if (lane == 0) {
    const bool own = args.row_policies == nullptr || args.row_policies[row] < 0;
    scratch.states[row] = bad   ? PlanRowState::kBad
                          : own ? PlanRowState::kOwn
                                : PlanRowState::kRemapped;
    scratch.masked[row] = !bad && masked ? 1 : 0;
  }
  if (!bad && NeedsMass(*args.parameters)) WeighExperts(args, scratch, row);
}

// --- The active set, by one block ---

// Whether the row chooses with those of policy p.
__device__ inline bool Votes(const PlanArgs& args, const PlanScratch& scratch, int row, int p) {
  const PlanRowState state = scratch.states[row];
  return state == PlanRowState::kOwn ||
         (state == PlanRowState::kRemapped && args.row_policies[row] == p);
}

// How a score becomes a bin, as BinRule of the planner.
struct PlanBins {
  double alpha, last, best, unit;

  __device__ PlanBins(const PlanPolicy& policy, const PlanScratch& scratch, int row)
      : alpha(policy.alpha),
        last(policy.beta == PlanPolicy::kUnbounded ? static_cast<double>(kInf) : policy.beta),
        best(scratch.best[row]),
        unit(1) {
    if (policy.self_scaled) unit = fabs(best - static_cast<double>(scratch.worst[row]));
  }
  __device__ double Of(float score) const {
    const double gap = best - static_cast<double>(score);
    if (gap == 0) return 0;
    const double bin = alpha * (unit == 1 ? gap : gap / unit);
    return floor(last < bin ? last : bin);
  }
};

struct SetShared {
  uint32_t exact_union[kPlanWords];
  uint32_t own_union[kPlanWords];
  uint32_t selected[kPlanWords];  // By one policy,
  uint32_t active[kPlanWords];    // and by all.
  int own, remapped, bad, voters;
  unsigned first_valid;
  uint32_t present, guarded, masked, opted_out;
  int bypass;
  uint64_t column[kMaxPlanExperts];  // Mass, or liking.
  uint32_t votes[kMaxPlanExperts];
  int order[kMaxPlanExperts];
  // While a set grows.
  unsigned long long kept;
  unsigned unsatisfied;
  unsigned long long gain;
};

// Of one block, whose threads call it together; `shared` is in its shared memory.
class SetSelection {
 public:
  __device__ SetSelection(const PlanArgs& args, const PlanScratch& scratch, SetShared& shared)
      : args_(args),
        scratch_(scratch),
        shared_(shared),
        thread_(static_cast<int>(threadIdx.x)),
        threads_(static_cast<int>(blockDim.x)) {}

  // Adds what policy p selects to shared.active, but for the votes of lynx.
  __device__ void Select(int p) {
    p_ = p;
    const PlanPolicy& policy = args_.parameters->policies[p];
    for (int word = thread_; word < kPlanWords; word += threads_) shared_.selected[word] = 0;
    if (thread_ == 0) shared_.voters = 0;
    __syncthreads();
    for (int row = thread_; row < args_.rows; row += threads_) {
      if (Votes(args_, scratch_, row, p)) atomicAdd(&shared_.voters, 1);
    }
    switch (policy.kind) {
      case PlanPolicy::Kind::kPrune:
        AddFloors(policy.k0);
        break;
      case PlanPolicy::Kind::kOea:
        AddFloors(policy.k0);
        SumMass();
        FillUp(args_.top_k);
        break;
      case PlanPolicy::Kind::kLynxCompat:
      case PlanPolicy::Kind::kLynx:
        if (policy.beta >= 0 && policy.beta <= 4) {
          LikePacked(policy);
        } else {
          LikeSorted(policy);
        }
        AddFloors(policy.kind == PlanPolicy::Kind::kLynx ? policy.floor : 0);
        break;
      case PlanPolicy::Kind::kVote:
        CountVotes();
        SumMass();
        for (int e = thread_; e < args_.experts; e += threads_) {
          int ahead = 0;
          for (int other = 0; other < args_.experts; ++other) {
            ahead += shared_.votes[other] > shared_.votes[e] ||
                             (shared_.votes[other] == shared_.votes[e] && Heavier(other, e))
                         ? 1
                         : 0;
          }
          if (ahead < policy.experts) Put(shared_.selected, e);
        }
        AddFloors(policy.floor);
        break;
      case PlanPolicy::Kind::kBudget:
        SelectBudget(policy);
        break;
      case PlanPolicy::Kind::kMarginal:
        SelectMarginal(policy);
        break;
    }
    __syncthreads();
    for (int word = thread_; word < kPlanWords; word += threads_) {
      shared_.active[word] |= shared_.selected[word];
    }
    __syncthreads();
  }

 private:
  __device__ const int* ExactOf(int row) const {
    return scratch_.exact_ids + static_cast<int64_t>(row) * args_.top_k;
  }
  __device__ bool Heavier(int a, int b) const {
    return shared_.column[a] > shared_.column[b] ||
           (shared_.column[a] == shared_.column[b] && a < b);
  }

  // The first `ranks` experts of every voter, all of those that keep their own.
  __device__ void AddFloors(int ranks) {
    for (int row = thread_; row < args_.rows; row += threads_) {
      if (!Votes(args_, scratch_, row, p_)) continue;
      const int kept = scratch_.states[row] == PlanRowState::kOwn ? args_.top_k : ranks;
      for (int j = 0; j < kept; ++j) Put(shared_.selected, ExactOf(row)[j]);
    }
    __syncthreads();
  }

  // Sums of integers: in any order the same.
  __device__ void SumMass() {
    for (int e = thread_; e < args_.experts; e += threads_) {
      uint64_t sum = 0;
      for (int row = 0; row < args_.rows; ++row) {
        if (Votes(args_, scratch_, row, p_)) {
          sum += scratch_.mass[static_cast<int64_t>(row) * args_.experts + e];
        }
      }
      shared_.column[e] = sum;
    }
    __syncthreads();
  }

  __device__ void CountVotes() {
    for (int e = thread_; e < args_.experts; e += threads_) shared_.votes[e] = 0;
    __syncthreads();
    for (int row = thread_; row < args_.rows; row += threads_) {
      if (!Votes(args_, scratch_, row, p_)) continue;
      for (int j = 0; j < args_.top_k; ++j) atomicAdd(&shared_.votes[ExactOf(row)[j]], 1u);
    }
    __syncthreads();
  }

  // The heaviest columns, until the set has `size`.
  __device__ void FillUp(int size) {
    const int open = size - Size(shared_.selected);
    uint32_t add = 0;  // Bit i: expert thread + i * threads.
    for (int e = thread_, i = 0; open > 0 && e < args_.experts; e += threads_, ++i) {
      if (Holds(shared_.selected, e)) continue;
      int ahead = 0;
      for (int other = 0; other < args_.experts; ++other) {
        ahead += !Holds(shared_.selected, other) && Heavier(other, e) ? 1 : 0;
      }
      if (ahead < open) add |= 1u << i;
    }
    __syncthreads();
    for (int e = thread_, i = 0; e < args_.experts; e += threads_, ++i) {
      if ((add >> i & 1u) != 0) Put(shared_.selected, e);
    }
    __syncthreads();
  }

  // By counts of voters, packed: one a bin but the last, which follows from the others.
  __device__ void LikePacked(const PlanPolicy& policy) {
    for (int e = thread_; e < args_.experts; e += threads_) {
      uint64_t liking = 0;
      for (int row = 0; row < args_.rows; ++row) {
        if (!Votes(args_, scratch_, row, p_)) continue;
        const int bin =
            static_cast<int>(PlanBins(policy, scratch_, row).Of(ScoresOf(args_, scratch_, row)[e]));
        if (bin < policy.beta) liking += uint64_t{1} << (12 * (3 - bin));
      }
      shared_.column[e] = liking;
    }
    __syncthreads();
    for (int e = thread_; e < args_.experts; e += threads_) {
      uint32_t place = 0;
      for (int other = 0; other < args_.experts; ++other) {
        place += shared_.column[other] < shared_.column[e] ? 1u : 0u;
      }
      scratch_.place[static_cast<int64_t>(p_) * args_.experts + e] = place;
    }
  }

  // By any number of bins: counts compare as sorted lists of bins do, the other way round.
  __device__ void LikeSorted(const PlanPolicy& policy) {
    __syncthreads();
    const int voters = shared_.voters;
    for (int e = thread_; e < args_.experts; e += threads_) {
      double* column = scratch_.columns + static_cast<int64_t>(e) * args_.rows;
      int held = 0;
      for (int row = 0; row < args_.rows; ++row) {
        if (!Votes(args_, scratch_, row, p_)) continue;
        const double bin = PlanBins(policy, scratch_, row).Of(ScoresOf(args_, scratch_, row)[e]);
        int at = held++;
        for (; at > 0 && column[at - 1] > bin; --at) column[at] = column[at - 1];
        column[at] = bin;
      }
    }
    __syncthreads();
    for (int e = thread_; e < args_.experts; e += threads_) {
      const double* column = scratch_.columns + static_cast<int64_t>(e) * args_.rows;
      uint32_t place = 0;
      for (int other = 0; other < args_.experts; ++other) {
        const double* others = scratch_.columns + static_cast<int64_t>(other) * args_.rows;
        int v = 0;
        while (v < voters && column[v] == others[v]) ++v;
        place += v < voters && others[v] > column[v] ? 1u : 0u;
      }
      scratch_.place[static_cast<int64_t>(p_) * args_.experts + e] = place;
    }
    __syncthreads();
  }

  // How many experts at most.
  __device__ int Limit(const PlanPolicy& policy) {
    if (policy.experts != 0) return policy.experts;
    if (policy.fraction <= 0) return args_.experts;
    CountVotes();
    int exact = 0;
    for (int e = 0; e < args_.experts; ++e) exact += shared_.votes[e] > 0 ? 1 : 0;
    const double share = ceil(policy.fraction * static_cast<double>(exact) - 1e-9);
    return Max(args_.top_k, static_cast<int>(share));
  }

  __device__ void SelectBudget(const PlanPolicy& policy) {
    const int limit = Limit(policy);
    SumMass();
    if (policy.coverage <= 0 && policy.row_coverage <= 0) {
      AddFloors(policy.floor);
      FillUp(limit);
      return;
    }
    const double enough =
        policy.coverage * static_cast<double>(kMassUnit) * static_cast<double>(shared_.voters);
    StartGrowing(policy.row_coverage);
    AddFloorsOneByOne(policy.floor);
    for (int i = 0; i < args_.experts; ++i) {
      const int e = shared_.order[i];
      const int size = Size(shared_.selected);
      const bool stop =
          size >= args_.top_k &&
          (size >= limit || (policy.coverage > 0 && static_cast<double>(shared_.kept) >= enough) ||
           (policy.row_coverage > 0 && shared_.unsatisfied == 0));
      if (stop) break;
      if (!Holds(shared_.selected, e)) Grow(e, policy.row_coverage);
    }
  }

  __device__ float CostOf(int e) const {
    return args_.expert_cost == nullptr ? 1.0f : args_.expert_cost[e];
  }

  __device__ void SelectMarginal(const PlanPolicy& policy) {
    SumMass();
    StartGrowing(0);
    AddFloorsOneByOne(policy.floor);
    for (int i = 0; i < args_.experts; ++i) {
      const int e = shared_.order[i];
      if (!Holds(shared_.selected, e) && CostOf(e) <= 0) Grow(e, 0);
    }
    float refused = kInf;
    for (int i = 0; i < args_.experts; ++i) {
      const int e = shared_.order[i];
      if (Holds(shared_.selected, e)) continue;
      if (Size(shared_.selected) >= args_.top_k) {
        const float cost = CostOf(e);
        if (cost >= refused) continue;
        if (static_cast<double>(Gain(e)) <
            policy.lambda * static_cast<double>(cost) * static_cast<double>(kMassUnit)) {
          refused = cost;
          continue;
        }
      }
      Grow(e, 0);
    }
  }

  // --- A set that grows, and what every voter keeps by its best experts in it: GrowingSet ---

  __device__ const uint32_t* GateMassOf(int row) const {
    return (args_.sigmoid ? scratch_.gate_mass : scratch_.mass) +
           static_cast<int64_t>(row) * args_.experts;
  }
  __device__ static bool Better(const float* scores, int a, int b) {
    return scores[a] > scores[b] || (scores[a] == scores[b] && a < b);
  }
  __device__ static bool Satisfied(uint64_t ratio, double share) {
    return static_cast<double>(ratio) >= share * static_cast<double>(kMassUnit);
  }

  // Also makes `order`, by falling mass.
  __device__ void StartGrowing(double row_coverage) {
    for (int e = thread_; e < args_.experts; e += threads_) {
      int ahead = 0;
      for (int other = 0; other < args_.experts; ++other) ahead += Heavier(other, e) ? 1 : 0;
      shared_.order[ahead] = e;
    }
    if (thread_ == 0) {
      shared_.kept = 0;
      shared_.unsatisfied = 0;
    }
    __syncthreads();
    for (int row = thread_; row < args_.rows; row += threads_) {
      if (!Votes(args_, scratch_, row, p_)) continue;
      uint64_t exact = 0;
      for (int j = 0; j < args_.top_k; ++j) exact += GateMassOf(row)[ExactOf(row)[j]];
      scratch_.exact_sum[row] = exact;
      scratch_.kept_held[row] = 0;
      scratch_.kept_sum[row] = 0;
      scratch_.kept_ratio[row] = 0;
      if (!Satisfied(0, row_coverage)) atomicAdd(&shared_.unsatisfied, 1u);
    }
    __syncthreads();
  }

  // Each voter's floor; which of them comes first does not matter.
  __device__ void AddFloorsOneByOne(int ranks) {
    AddFloors(ranks);
    for (int e = 0; e < args_.experts; ++e) {
      if (Holds(shared_.selected, e)) Grow(e, args_.parameters->policies[p_].row_coverage);
    }
  }

  __device__ uint64_t SumWith(int row, int expert) const {
    const float* scores = ScoresOf(args_, scratch_, row);
    const uint64_t sum = scratch_.kept_sum[row];
    if (scores[expert] == -kInf) return sum;
    const uint32_t* mass = GateMassOf(row);
    const int held = scratch_.kept_held[row];
    if (held < args_.top_k) return sum + mass[expert];
    const int last = scratch_.kept_ids[static_cast<int64_t>(row) * args_.top_k + held - 1];
    if (!Better(scores, expert, last)) return sum;
    return sum + mass[expert] - mass[last];
  }
  __device__ uint64_t Ratio(int row, uint64_t sum) const {
    const uint64_t exact = scratch_.exact_sum[row];
    return sum >= exact ? kMassUnit : sum * kMassUnit / exact;
  }

  __device__ long long Gain(int expert) {
    if (thread_ == 0) shared_.gain = 0;
    __syncthreads();
    for (int row = thread_; row < args_.rows; row += threads_) {
      if (!Votes(args_, scratch_, row, p_)) continue;
      atomicAdd(&shared_.gain, static_cast<unsigned long long>(Ratio(row, SumWith(row, expert)) -
                                                               scratch_.kept_ratio[row]));
    }
    __syncthreads();
    const auto gain = static_cast<long long>(shared_.gain);
    __syncthreads();
    return gain;
  }

  __device__ void Grow(int expert, double row_coverage) {
    __syncthreads();
    if (thread_ == 0) Put(shared_.selected, expert);
    for (int row = thread_; row < args_.rows; row += threads_) {
      if (!Votes(args_, scratch_, row, p_)) continue;
      const float* scores = ScoresOf(args_, scratch_, row);
      if (scores[expert] == -kInf) continue;
      const uint64_t sum = SumWith(row, expert);
      int* ids = scratch_.kept_ids + static_cast<int64_t>(row) * args_.top_k;
      int held = scratch_.kept_held[row];
      if (held < args_.top_k || Better(scores, expert, ids[held - 1])) {
        if (held < args_.top_k) ++held;
        int at = held - 1;
        for (; at > 0 && Better(scores, expert, ids[at - 1]); --at) ids[at] = ids[at - 1];
        ids[at] = expert;
      }
      const uint64_t before = scratch_.kept_ratio[row], after = Ratio(row, sum);
      scratch_.kept_sum[row] = sum;
      scratch_.kept_held[row] = held;
      scratch_.kept_ratio[row] = after;
      atomicAdd(&shared_.kept, static_cast<unsigned long long>(after - before));
      const int change =
          (Satisfied(after, row_coverage) ? 0 : 1) - (Satisfied(before, row_coverage) ? 0 : 1);
      if (change != 0) atomicAdd(&shared_.unsatisfied, static_cast<unsigned>(change));
    }
    __syncthreads();
  }

  const PlanArgs& args_;
  const PlanScratch& scratch_;
  SetShared& shared_;
  const int thread_, threads_;
  int p_ = 0;
};

// Why every row keeps its own: WhyExact() of the planner.
__device__ inline PlanBypass WhyExact(const PlanArgs& args, const SetShared& shared) {
  if (shared.remapped == 0) {
    if (shared.own == 0 && shared.bad > 0) return PlanBypass::kBadLogits;
    return shared.opted_out != 0 ? PlanBypass::kOptOut : PlanBypass::kPolicyOff;
  }
  if (!args.parameters->remap) return PlanBypass::kPhase;
  if (shared.guarded == 0) return PlanBypass::kNone;
  if (args.top_k == args.experts) return PlanBypass::kKEqualsN;
  if (shared.own + shared.remapped == 1) {
    return shared.bad > 0 ? PlanBypass::kBadLogits : PlanBypass::kBatchOfOne;
  }
  return PlanBypass::kNone;
}

static __global__ void __launch_bounds__(kMaxPlanExperts)
    SelectSets(PlanArgs args, PlanScratch scratch) {
  LYNX_SHARED(shared, SetShared);
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  for (int word = thread; word < kPlanWords; word += threads) {
    shared.exact_union[word] = shared.own_union[word] = shared.active[word] = 0;
  }
  if (thread == 0) {
    shared.own = shared.remapped = shared.bad = 0;
    shared.first_valid = 0;
    shared.present = shared.guarded = shared.masked = shared.opted_out = 0;
  }
  __syncthreads();
  for (int row = thread; row < args.rows; row += threads) {
    const PlanRowState state = scratch.states[row];
    if (state == PlanRowState::kPadding) continue;
    atomicMax(&shared.first_valid, static_cast<unsigned>(args.rows - row));
    for (int j = 0; j < args.top_k; ++j) {
      const int e = scratch.exact_ids[static_cast<int64_t>(row) * args.top_k + j];
      Put(shared.exact_union, e);
      if (state != PlanRowState::kBad) Put(shared.own_union, e);
    }
    if (scratch.masked[row] != 0) atomicOr(&shared.masked, 1u);
    if (state == PlanRowState::kBad) {
      atomicAdd(&shared.bad, 1);
    } else if (state == PlanRowState::kOwn) {
      atomicAdd(&shared.own, 1);
      if (args.row_policies != nullptr && args.row_policies[row] == kExactPolicy) {
        atomicOr(&shared.opted_out, 1u);
      }
    } else {
      atomicAdd(&shared.remapped, 1);
      const int p = args.row_policies[row];
      atomicOr(&shared.present, 1u << p);
      if (args.parameters->policies[p].kind != PlanPolicy::Kind::kLynxCompat) {
        atomicOr(&shared.guarded, 1u);
      }
    }
  }
  __syncthreads();
  const PlanBypass bypass = WhyExact(args, shared);
  if (bypass == PlanBypass::kNone) {
    SetSelection selection(args, scratch, shared);
    for (int p = 0; p < args.parameters->count; ++p) {
      if ((shared.present >> p & 1u) != 0) selection.Select(p);
    }
  }
  for (int word = thread; word < kPlanWords; word += threads) {
    scratch.active[word] = shared.active[word];
    scratch.exact_union[word] = shared.exact_union[word];
    scratch.used[word] = scratch.used_by_all[word] = 0;
  }
  if (thread == 0) {
    PlanProgress& progress = *scratch.progress;
    progress.bypass = static_cast<int32_t>(bypass);
    progress.exact_distinct = Size(shared.exact_union);
    progress.own_distinct = Size(shared.own_union);
    progress.guarded = static_cast<int32_t>(shared.guarded);
    progress.masked = static_cast<int32_t>(shared.masked);
    progress.first_valid =
        shared.first_valid == 0 ? -1 : args.rows - static_cast<int32_t>(shared.first_valid);
    progress.present = shared.present;
    progress.voted = progress.assigned = 0;
  }
}

// --- The votes of lynx ---

// Marks the votes of one row by one policy, as Vote() of the planner. `list` has room for top_k.
__device__ inline void VoteOfRow(const PlanArgs& args, const PlanScratch& scratch, int row, int p,
                                 int* list) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const PlanPolicy& policy = args.parameters->policies[p];
  const PlanBins bins(policy, scratch, row);
  const float* scores = ScoresOf(args, scratch, row);
  const int* exact = scratch.exact_ids + static_cast<int64_t>(row) * args.top_k;
  const double boundary = bins.Of(scratch.worst[row]);
  const bool sure = lane < args.top_k && bins.Of(scores[exact[lane]]) != boundary;
  if (sure) Put(scratch.active, exact[lane]);
  const int open = args.top_k - __popc(__ballot_sync(kAllLanes, sure));
  uint32_t members = 0;  // Bit i: expert lane + 32 i is of the boundary bin.
  for (int i = 0, e = lane; e < args.experts; ++i, e += 32) {
    if (scores[e] > -kInf && bins.Of(scores[e]) == boundary) members |= 1u << i;
  }
  const uint32_t* place = scratch.place + static_cast<int64_t>(p) * args.experts;
  const bool index_ties = policy.kind == PlanPolicy::Kind::kLynxCompat;
  const int held = WarpTop(args.experts, open, list, [&](int e) {
    if ((members >> (e / 32) & 1u) == 0) return RankKey{0, 0};
    return RankKey{place[e] + 1, index_ties ? 1 : OrderedBits(scores[e])};
  });
  if (lane < held) Put(scratch.active, list[lane]);
  __syncwarp();
}

// Rows that find fewer than top-k experts in the set that all voted for add their own.
__device__ inline void AddShortRows(const PlanArgs& args, const PlanScratch& scratch,
                                    uint32_t* active) {
  for (int word = static_cast<int>(threadIdx.x); word < kPlanWords; word += kPlanThreads) {
    active[word] = LoadAcquire(&scratch.active[word]);
  }
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  for (int row = static_cast<int>(threadIdx.x / kWarp); row < args.rows; row += kPlanWarps) {
    if (scratch.states[row] != PlanRowState::kRemapped) continue;
    if (args.parameters->policies[args.row_policies[row]].kind == PlanPolicy::Kind::kPrune)
      continue;
    const float* scores = ScoresOf(args, scratch, row);
    uint32_t usable = 0;
    for (int e = lane; e < args.experts; e += 32) {
      usable += scores[e] > -kInf && Holds(active, e) ? 1u : 0u;
    }
    const uint32_t all = __reduce_add_sync(kAllLanes, usable);
    if (all < static_cast<uint32_t>(args.top_k) && lane < args.top_k) {
      Put(scratch.active, scratch.exact_ids[static_cast<int64_t>(row) * args.top_k + lane]);
    }
  }
}

static __global__ void __launch_bounds__(kPlanThreads, 8) Vote(PlanArgs args, PlanScratch scratch) {
  LYNX_SHARED(lists, int[kPlanWarps][kMaxPlanTopK]);
  LYNX_SHARED(active, uint32_t[kPlanWords]);
  LYNX_SHARED(last, int);
  if (scratch.progress->bypass != 0) return;
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  const int row = static_cast<int>(blockIdx.x) * kPlanWarps + warp;
  if (row < args.rows) {
    for (int p = 0; p < args.parameters->count; ++p) {
      const PlanPolicy::Kind kind = args.parameters->policies[p].kind;
      if (kind != PlanPolicy::Kind::kLynx && kind != PlanPolicy::Kind::kLynxCompat) continue;
      if ((scratch.progress->present >> p & 1u) == 0 || !Votes(args, scratch, row, p)) continue;
      VoteOfRow(args, scratch, row, p, lists[warp]);
    }
  }
  if (scratch.progress->masked == 0) return;
  __syncthreads();
  if (threadIdx.x == 0) last = Publish(&scratch.progress->voted) == gridDim.x - 1 ? 1 : 0;
  __syncthreads();
  if (last != 0) AddShortRows(args, scratch, active);
}

// --- Who gets what ---

// The gate's scores of one row's experts, without their common factor e^anchor: Scores of the
// planner. A warp calls it; sums go through `terms`, kMaxPlanTopK floats of its own.
class RowScores {
 public:
  __device__ RowScores(const PlanArgs& args, int row, float* terms)
      : args_(args),
        logits_(args.logits + static_cast<int64_t>(row) * args.experts),
        terms_(terms),
        lane_(static_cast<int>(threadIdx.x % kWarp)) {}

  __device__ float Anchor(const int* ids, int count) const {
    return WarpMax(lane_ < count ? Exponent(ids[lane_]) : -kInf);
  }
  // Of the lane's expert.
  __device__ float Of(const int* ids, int count, float anchor) const {
    if (lane_ >= count) return 0;
    const float logit = logits_[ids[lane_]];
    const float score = GateExp(Exponent(ids[lane_]) - anchor);
    return args_.sigmoid ? score / (1.0f + GateExp(-fabsf(logit))) : score;
  }
  // Sums of the lanes' terms, one after the other.
  template <typename T>
  __device__ T Sum(float term, int count) const {
    __syncwarp();
    if (lane_ < count) terms_[lane_] = term;
    __syncwarp();
    T sum = 0;
    for (int j = 0; j < count; ++j) sum = sum + static_cast<T>(terms_[j]);
    return sum;
  }
  // What the gate gives the row's own top-k altogether.
  __device__ float ExactMass(const int* exact) const {
    const int k = args_.top_k;
    if (args_.sigmoid) return static_cast<float>(Sum<double>(Of(exact, k, 0), k));
    const float largest = Largest(logits_, args_.experts);
    const double kept = Sum<double>(Of(exact, k, largest), k);
    double all = 0;
    for (int e = lane_; e < args_.experts; e += 32) {
      all = all + static_cast<double>(GateExp(logits_[e] - largest));
    }
    return static_cast<float>(kept / WarpSum(all));
  }
  // The lane's weight where the row goes through `ids`, and what it keeps.
  __device__ float Weigh(const int* exact, const int* ids, int count, float* kept_mass) const {
    const float anchor = Anchor(ids, count);
    const float score = Of(ids, count, anchor);
    double kept = Sum<double>(score, count);
    float weight = score / Sum<float>(score, count);
    if (args_.keep_mass) weight = weight * ExactMass(exact);
    weight = weight * args_.scale;
    const bool differs =
        lane_ < Max(count, args_.top_k) && (count != args_.top_k || ids[lane_] != exact[lane_]);
    if (!__any_sync(kAllLanes, differs)) {
      *kept_mass = 1;
      return weight;
    }
    const float common = fmaxf(Anchor(exact, args_.top_k), anchor);
    if (common != anchor) kept = Sum<double>(Of(ids, count, common), count);
    const double whole = Sum<double>(Of(exact, args_.top_k, common), args_.top_k);
    *kept_mass = whole > 0 ? static_cast<float>(kept / whole) : 1.0f;
    return weight;
  }

 private:
  __device__ float Exponent(int e) const {
    return args_.sigmoid ? fminf(logits_[e], 0.0f) : logits_[e];
  }

  const PlanArgs& args_;
  const float* const logits_;
  float* const terms_;
  const int lane_;
};

struct AssignShared {
  int exact[kPlanWarps][kMaxPlanTopK];
  int chosen[kPlanWarps][kMaxPlanTopK];
  float terms[kPlanWarps][kMaxPlanTopK];
  uint32_t set[kPlanWords];  // The active set; of the last block, what is used.
  int last;
};

// One row: its best within the active set, its weights there and with its own.
__device__ inline void AssignRow(const PlanArgs& args, const PlanScratch& scratch, int row,
                                 bool bypass, AssignShared& shared) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  const PlanRowState state = scratch.states[row];
  if (state == PlanRowState::kPadding) return;
  const int k = args.top_k;
  const int64_t begin = static_cast<int64_t>(row) * k;
  int* exact = shared.exact[warp];
  int* chosen = shared.chosen[warp];
  if (lane < k) exact[lane] = chosen[lane] = scratch.exact_ids[begin + lane];
  __syncwarp();
  int width = k, stand_ins = 0;
  if (!bypass && state == PlanRowState::kRemapped) {
    const PlanPolicy& policy = args.parameters->policies[args.row_policies[row]];
    if (policy.kind == PlanPolicy::Kind::kPrune) {
      width = policy.k0;
    } else {
      const bool missing = lane < k && !Holds(shared.set, exact[lane]);
      stand_ins = __popc(__ballot_sync(kAllLanes, missing));
      if (stand_ins > 0) {
        const float* scores = ScoresOf(args, scratch, row);
        __syncwarp();
        WarpTop(args.experts, k, chosen, [&](int e) {
          const bool usable = scores[e] > -kInf && Holds(shared.set, e);
          return RankKey{usable ? OrderedBits(scores[e]) : 0, 0};
        });
      }
    }
  }
  if (lane < width) {
    Put(scratch.used_by_all, chosen[lane]);
    if (state != PlanRowState::kBad) Put(scratch.used, chosen[lane]);
  }
  float exact_weight = __uint_as_float(0x7fc00000u), weight = exact_weight, kept = 1;
  if (state != PlanRowState::kBad) {
    const RowScores scores(args, row, shared.terms[warp]);
    exact_weight = weight = scores.Weigh(exact, exact, k, &kept);
    if (width != k || stand_ins > 0) weight = scores.Weigh(exact, chosen, width, &kept);
  }
  if (lane < k) {
    scratch.exact_weights[begin + lane] = exact_weight;
    scratch.chosen_ids[begin + lane] = chosen[lane];
    scratch.chosen_weights[begin + lane] = weight;
  }
  if (lane == 0) {
    scratch.chosen_kept[row] = kept;
    scratch.widths[row] = width;
    scratch.stand_ins[row] = stand_ins;
  }
  __syncwarp();
}

// The guard's choice, and all results: of the block that comes last, when it sees all rows' parts.
__device__ inline void FinishPlan(const PlanArgs& args, const PlanScratch& scratch,
                                  AssignShared& shared) {
  const int thread = static_cast<int>(threadIdx.x), k = args.top_k;
  const PlanProgress& progress = *scratch.progress;
  for (int word = thread; word < kPlanWords; word += kPlanThreads) {
    shared.set[word] = LoadAcquire(&scratch.used[word]);
  }
  __syncthreads();
  auto bypass = static_cast<PlanBypass>(progress.bypass);
  if (bypass == PlanBypass::kNone && progress.guarded != 0 &&
      Size(shared.set) >= progress.own_distinct) {
    bypass = PlanBypass::kGuard;
  }
  const bool exact = bypass != PlanBypass::kNone;
  __syncthreads();
  for (int word = thread; word < kPlanWords; word += kPlanThreads) {
    shared.set[word] = exact ? scratch.exact_union[word] : LoadAcquire(&scratch.used_by_all[word]);
  }
  __syncthreads();
  for (int i = thread; i < args.rows * k; i += kPlanThreads) {
    const int row = i / k, j = i % k;
    const bool padding = scratch.states[row] == PlanRowState::kPadding;
    const int from = padding ? progress.first_valid : row;
    int id = 0;
    float weight = 0;
    if (from >= 0) {
      const int64_t begin = static_cast<int64_t>(from) * k;
      const int width = exact ? k : scratch.widths[from];
      const int* ids = (exact ? scratch.exact_ids : scratch.chosen_ids) + begin;
      id = j < width ? ids[j] : ids[0];
      // All of a bad row's are NaN.
      if (j < width || scratch.states[from] == PlanRowState::kBad) {
        weight = (exact ? scratch.exact_weights : scratch.chosen_weights)[begin + j];
      }
    }
    args.ids[i] = id;
    args.weights[i] = padding ? 0 : weight;
  }
  for (int row = thread; row < args.rows; row += kPlanThreads) {
    const bool padding = scratch.states[row] == PlanRowState::kPadding;
    args.widths[row] = padding ? 0 : exact ? k : scratch.widths[row];
    args.kept_mass[row] = padding || exact ? 1 : scratch.chosen_kept[row];
  }
  for (int e = thread; e < args.experts; e += kPlanThreads) {
    if (!Holds(shared.set, e)) continue;
    int before = __popc(shared.set[e / 32] & ((1u << (e % 32)) - 1));
    for (int word = 0; word < e / 32; ++word) before += __popc(shared.set[word]);
    args.active[before] = e;
  }
  if (thread != 0) return;
  PlanSummary summary;
  summary.experts_exact = progress.exact_distinct;
  summary.experts = Size(shared.set);
  summary.bypass = bypass;
  double kept_sum = 0;
  int ranked = 0;
  for (int row = 0; row < args.rows; ++row) {
    const PlanRowState state = scratch.states[row];
    if (state == PlanRowState::kPadding) continue;
    ++summary.rows;
    summary.assignments += exact ? k : scratch.widths[row];
    if (state == PlanRowState::kBad) {
      ++summary.bad_rows;
      continue;
    }
    const float kept = exact ? 1 : scratch.chosen_kept[row];
    if (!exact) summary.remapped += scratch.stand_ins[row];
    summary.kept_mass_min = fminf(summary.kept_mass_min, kept);
    kept_sum = kept_sum + static_cast<double>(kept);
    ++ranked;
  }
  if (ranked > 0) summary.kept_mass_mean = static_cast<float>(kept_sum / ranked);
  *args.summary = summary;
}

static __global__ void __launch_bounds__(kPlanThreads)
    AssignRows(PlanArgs args, PlanScratch scratch) {
  LYNX_SHARED(shared, AssignShared);
  const bool bypass = scratch.progress->bypass != 0;
  for (int word = static_cast<int>(threadIdx.x); word < kPlanWords; word += kPlanThreads) {
    shared.set[word] = scratch.active[word];
  }
  __syncthreads();
  const int row = static_cast<int>(blockIdx.x * kPlanWarps + threadIdx.x / kWarp);
  if (row < args.rows) AssignRow(args, scratch, row, bypass, shared);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    shared.last = Publish(&scratch.progress->assigned) == gridDim.x - 1 ? 1 : 0;
  }
  __syncthreads();
  if (shared.last != 0) FinishPlan(args, scratch, shared);
}

inline int QueuePlan(const PlanArgs& args, const DeviceQueue& queue) {
  const PlanScratch scratch(queue.scratch, args.rows, args.experts, args.top_k);
  if (queue.scratch == nullptr || queue.scratch_bytes < scratch.bytes) return kScratchTooSmall;
  const auto blocks = static_cast<unsigned>(CeilDiv(args.rows, kPlanWarps));
  const auto columns = static_cast<unsigned>(CeilDiv(args.experts, 32) * 32);
  LYNX_LAUNCH(RankRows, blocks, kPlanThreads, 0, queue.stream, args, scratch);
  LYNX_LAUNCH(SelectSets, 1u, columns, 0, queue.stream, args, scratch);
  LYNX_LAUNCH(Vote, blocks, kPlanThreads, 0, queue.stream, args, scratch);
  LYNX_LAUNCH(AssignRows, blocks, kPlanThreads, 0, queue.stream, args, scratch);
  return static_cast<int>(cudaGetLastError());
}

}  // namespace lynx::kernels::device
