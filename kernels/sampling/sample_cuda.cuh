#pragma once

#include "kernels/core/device.cuh"
#include "kernels/core/device_kernels.h"
#include "kernels/core/scratch_layout.h"
#include "kernels/sampling/sample_args.h"

// The draw of engine::Sampler in three launches, with its own arithmetic
// (kernels/sampling/logits.cc) in its own order: sums of weights over blocks of 1024 in sixteen
// lanes, blocks one after the other.
namespace lynx::kernels::device {

inline constexpr int kSampleThreads = 256;
inline constexpr int kSampleBlock = 1024;  // Logits: kWeightBlock of logits.h.
inline constexpr int kSampleLanes = 16;
inline constexpr int kMaxSampleBlocks = kMaxSampleVocab / kSampleBlock;

// Of rows [0, rows) of a launch; `blocks` a row.
struct SampleScratch {
  float* weights;   // [rows, vocab]
  double* partial;  // [rows, blocks]
  float* best;      // [rows, blocks] The largest logit of a block,
  int* best_at;     // and where it is first.
  uint32_t* bad;    // [rows, blocks] NaN or +Inf among them.
  int blocks;
  size_t bytes;

  SampleScratch(std::byte* base, int64_t row_count, int64_t vocab)
      : blocks(static_cast<int>(CeilDiv<int64_t>(vocab, kSampleBlock))) {
    const auto rows = static_cast<size_t>(row_count), each = static_cast<size_t>(blocks);
    ScratchLayout layout(base);
    layout.Take(weights, rows * static_cast<size_t>(vocab));
    layout.Take(partial, rows * each);
    layout.Take(best, rows * each);
    layout.Take(best_at, rows * each);
    layout.Take(bad, rows * each);
    bytes = layout.bytes();
  }
};

// e^x for x <= 0, as ExpNonPositive().
__device__ inline float SampleExp(float x) {
  const float clamped = x < -87.0f ? -87.0f : x;
  const int n = static_cast<int>(clamped * 1.44269504f - 0.5f);
  const float whole = static_cast<float>(n);
  const float r = (clamped - whole * 0.693359375f) - whole * -2.12194440e-4f;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const float scale = __uint_as_float(static_cast<uint32_t>(n + 127) << 23);
  return x < -87.0f ? 0.0f : p * scale;
}

// Uniform in [0, 1), by Philox4x32-10 (philox.h) of the row's seed, choice and position.
__device__ inline double SampleUniform(const SampleRow& row) {
  uint32_t c0 = static_cast<uint32_t>(row.position), c1 = static_cast<uint32_t>(row.position >> 32);
  uint32_t c2 = row.choice_index, c3 = 0;
  uint32_t k0 = static_cast<uint32_t>(row.seed), k1 = static_cast<uint32_t>(row.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c0, p1 = uint64_t{0xCD9E8D57} * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  const uint64_t bits = (uint64_t{c0} << 32 | c1) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

// The best (largest, then lowest id) of what one thread offers, over the block: its OrderedBits,
// and where. Of 0 there is nothing. `shared` has two words a warp.
struct BestOf {
  uint32_t key;
  int at;
};
__device__ inline BestOf BlockBest(BestOf mine, uint32_t* shared) {
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  const uint32_t key = __reduce_max_sync(kAllLanes, mine.key);
  const uint32_t at =
      __reduce_min_sync(kAllLanes, mine.key == key ? static_cast<uint32_t>(mine.at) : 0xffffffffu);
  __syncthreads();  // What was there has been read.
  if (threadIdx.x % kWarp == 0) {
    shared[2 * warp] = key;
    shared[2 * warp + 1] = at;
  }
  __syncthreads();
  BestOf best{0, 0};
  for (int w = 0; w < kSampleThreads / 32; ++w) {
    const bool ahead = shared[2 * w] > best.key ||
                       (shared[2 * w] == best.key && static_cast<int>(shared[2 * w + 1]) < best.at);
    if (ahead) best = {shared[2 * w], static_cast<int>(shared[2 * w + 1])};
  }
  return best;
}

static __global__ void __launch_bounds__(kSampleThreads)
    SummarizeBlocks(SampleArgs args, SampleScratch scratch) {
  LYNX_SHARED(shared, uint32_t[2 * kSampleThreads / 32]);
  LYNX_SHARED(wrong, uint32_t);
  const int block = static_cast<int>(blockIdx.x);
  const int64_t row = blockIdx.y;
  const float* logits = args.logits + row * args.stride;
  const int begin = block * kSampleBlock;
  const int end = static_cast<int>(Min<int64_t>(begin + kSampleBlock, args.vocab));
  if (threadIdx.x == 0) wrong = 0;
  __syncthreads();
  BestOf mine{0, 0};
  bool bad = false;
  for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += kSampleThreads) {
    bad |= !(logits[i] <= 3.402823466e+38f);
    const uint32_t key = OrderedBits(logits[i]);
    if (key > mine.key) mine = {key, i};
  }
  if (bad) atomicOr(&wrong, 1u);
  const BestOf best = BlockBest(mine, shared);
  if (threadIdx.x == 0) {
    const int64_t to = row * scratch.blocks + block;
    scratch.best[to] = logits[best.at < begin ? begin : best.at];
    scratch.best_at[to] = best.at;
    scratch.bad[to] = wrong;
  }
}

// Over the blocks of a row: its largest logit, where it is first, and whether one of them is bad.
struct RowSummary {
  float largest;
  int at;
  bool bad;
};
__device__ inline RowSummary SummaryOf(const SampleScratch& scratch, int64_t row) {
  RowSummary summary{-__builtin_huge_valf(), 0, false};
  for (int b = 0; b < scratch.blocks; ++b) {
    const int64_t from = row * scratch.blocks + b;
    summary.bad |= scratch.bad[from] != 0;
    if (scratch.best[from] > summary.largest) {
      summary.largest = scratch.best[from];
      summary.at = scratch.best_at[from];
    }
  }
  summary.bad |= summary.largest == -__builtin_huge_valf();
  return summary;
}

__device__ inline bool HasTopK(const SampleRow& row, int64_t vocab) {
  return row.top_k > 0 && row.top_k < vocab;
}

static __global__ void __launch_bounds__(kSampleThreads)
    WeighBlocks(SampleArgs args, SampleScratch scratch) {
  LYNX_SHARED(lanes, double[kSampleLanes]);
  LYNX_SHARED(weights, float[kSampleBlock]);
  const int thread = static_cast<int>(threadIdx.x), block = static_cast<int>(blockIdx.x);
  const int64_t row = blockIdx.y;
  const SampleRow how = args.rows[row];
  if (how.temperature == 0 || HasTopK(how, args.vocab)) return;
  const float largest = SummaryOf(scratch, row).largest;
  const int begin = block * kSampleBlock;
  const int count = static_cast<int>(Min<int64_t>(kSampleBlock, args.vocab - begin));
  const float* logits = args.logits + row * args.stride + begin;
  for (int i = thread; i < count; i += kSampleThreads) {
    const float weight = SampleExp((logits[i] - largest) / how.temperature);
    weights[i] = weight < how.min_p ? 0.0f : weight;
    scratch.weights[row * args.vocab + begin + i] = weights[i];
  }
  __syncthreads();
  const int whole = count / kSampleLanes * kSampleLanes;
  if (thread < kSampleLanes) {
    double sum = 0;
    for (int i = thread; i < whole; i += kSampleLanes) sum = sum + static_cast<double>(weights[i]);
    for (int i = whole; thread == 0 && i < count; ++i) sum = sum + static_cast<double>(weights[i]);
    lanes[thread] = sum;
  }
  __syncthreads();
  if (thread == 0) {
    double sum = 0;
    for (const double lane : lanes) sum = sum + lane;
    scratch.partial[row * scratch.blocks + block] = sum;
  }
}

// Sampler::DrawFromAll(), by one thread.
__device__ inline TokenId DrawFromAll(const SampleArgs& args, const SampleScratch& scratch,
                                      int64_t row, double uniform) {
  const double* partial = scratch.partial + row * scratch.blocks;
  const float* weights = scratch.weights + row * args.vocab;
  const int vocab = static_cast<int>(args.vocab);
  double total = 0;
  for (int b = 0; b < scratch.blocks; ++b) total = total + partial[b];
  const double target = uniform * total;
  double before = 0;
  int block = 0;
  while (block + 1 < scratch.blocks && before + partial[block] <= target) {
    before = before + partial[block++];
  }
  const int end = Min((block + 1) * kSampleBlock, vocab);
  for (int i = block * kSampleBlock; i < end; ++i) {
    if (weights[i] == 0) continue;
    before = before + static_cast<double>(weights[i]);
    if (before > target) return i;
  }
  int last = end;
  while (weights[last - 1] == 0) --last;
  return last - 1;
}

struct DrawShared {
  float value[kMaxSampleTopK];
  int id[kMaxSampleTopK];
  float best[kMaxSampleBlocks];
  int best_at[kMaxSampleBlocks];
  uint32_t words[2 * kSampleThreads / 32];
};

// The top-k of a row, best first: the block with the best gives it, and finds its next.
__device__ inline void TakeTopK(const SampleArgs& args, const SampleScratch& scratch, int64_t row,
                                int top_k, DrawShared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  const float* logits = args.logits + row * args.stride;
  for (int b = thread; b < scratch.blocks; b += kSampleThreads) {
    shared.best[b] = scratch.best[row * scratch.blocks + b];
    shared.best_at[b] = scratch.best_at[row * scratch.blocks + b];
  }
  __syncthreads();
  for (int k = 0; k < top_k; ++k) {
    BestOf mine{0, 0};
    for (int b = thread; b < scratch.blocks; b += kSampleThreads) {
      if (shared.best_at[b] < 0) continue;
      const uint32_t key = OrderedBits(shared.best[b]);
      if (key > mine.key) mine = {key, b};
    }
    const int block = BlockBest(mine, shared.words).at;
    const float value = shared.best[block];
    const int at = shared.best_at[block];
    // Of the block, the best of those behind it: smaller, or as large with a higher id.
    mine = {0, 0};
    const int begin = block * kSampleBlock;
    const int end = static_cast<int>(Min<int64_t>(begin + kSampleBlock, args.vocab));
    for (int i = begin + thread; i < end; i += kSampleThreads) {
      if (logits[i] > value || (logits[i] == value && i <= at)) continue;
      const uint32_t key = OrderedBits(logits[i]);
      if (key > mine.key) mine = {key, i};
    }
    const BestOf next = BlockBest(mine, shared.words);
    __syncthreads();
    if (thread == 0) {
      shared.value[k] = value;
      shared.id[k] = at;
      shared.best[block] = next.key == 0 ? 0.0f : logits[next.at];
      shared.best_at[block] = next.key == 0 ? -1 : next.at;
    }
    __syncthreads();
  }
}

// Sampler::DrawFromCandidates() over what TakeTopK() found, by one thread.
__device__ inline TokenId DrawFromTopK(const SampleRow& how, float largest, int count,
                                       double uniform, DrawShared& shared) {
  double total = 0;
  for (int i = 0; i < count; ++i) {
    const float weight = SampleExp((shared.value[i] - largest) / how.temperature);
    const int id = shared.id[i];
    total = total + static_cast<double>(weight);
    // By weight now, where several logits may have the same: then by id.
    int to = i;
    for (; to > 0; --to) {
      const float ahead = shared.value[to - 1];
      if (ahead > weight || (ahead == weight && shared.id[to - 1] < id)) break;
      shared.value[to] = ahead;
      shared.id[to] = shared.id[to - 1];
    }
    shared.value[to] = weight;
    shared.id[to] = id;
  }
  const double enough = how.top_p < 1 ? static_cast<double>(how.top_p) * total
                                      : static_cast<double>(__builtin_huge_valf());
  int kept = 0;
  double kept_sum = 0;
  for (; kept < count && kept_sum < enough && shared.value[kept] >= how.min_p; ++kept) {
    kept_sum = kept_sum + static_cast<double>(shared.value[kept]);
  }
  const double target = uniform * kept_sum;
  double before = 0;
  int chosen = 0;
  for (int i = 0; i < kept && shared.value[i] > 0; ++i) {
    chosen = i;
    before = before + static_cast<double>(shared.value[i]);
    if (before > target) break;
  }
  return shared.id[chosen];
}

static __global__ void __launch_bounds__(kSampleThreads)
    DrawTokens(SampleArgs args, SampleScratch scratch) {
  LYNX_SHARED(shared, DrawShared);
  const int64_t row = blockIdx.x;
  const SampleRow how = args.rows[row];
  const RowSummary summary = SummaryOf(scratch, row);
  const bool has_top_k = HasTopK(how, args.vocab);
  const bool there =
      how.temperature == 0 || (has_top_k ? how.top_k <= kMaxSampleTopK : how.top_p >= 1);
  TokenId token = summary.at;
  if (summary.bad) {
    token = kBrokenRow;
  } else if (!there) {
    token = kNotOnThisDevice;
  } else if (how.temperature != 0) {
    if (has_top_k) TakeTopK(args, scratch, row, how.top_k, shared);
    if (threadIdx.x == 0) {
      const double uniform = SampleUniform(how);
      token = has_top_k ? DrawFromTopK(how, summary.largest, how.top_k, uniform, shared)
                        : DrawFromAll(args, scratch, row, uniform);
    }
  }
  if (threadIdx.x == 0) args.tokens[row] = token;
}

// By as many rows at a time as the scratch memory has room for.
inline int QueueSample(const SampleArgs& args, const DeviceQueue& queue) {
  if (queue.scratch == nullptr) return kScratchTooSmall;
  int64_t rows = args.row_count;
  while (rows > 0 && SampleScratch(nullptr, rows, args.vocab).bytes > queue.scratch_bytes)
    rows /= 2;
  if (rows == 0) return kScratchTooSmall;
  for (int64_t first = 0; first < args.row_count; first += rows) {
    SampleArgs part = args;
    part.logits += first * args.stride;
    part.rows += first;
    part.tokens += first;
    part.row_count = Min(rows, args.row_count - first);
    const SampleScratch scratch(queue.scratch, part.row_count, args.vocab);
    const dim3 grid{static_cast<unsigned>(scratch.blocks), static_cast<unsigned>(part.row_count),
                    1};
    LYNX_LAUNCH(SummarizeBlocks, grid, kSampleThreads, 0, queue.stream, part, scratch);
    LYNX_LAUNCH(WeighBlocks, grid, kSampleThreads, 0, queue.stream, part, scratch);
    LYNX_LAUNCH(DrawTokens, static_cast<unsigned>(part.row_count), kSampleThreads, 0, queue.stream,
                part, scratch);
  }
  return static_cast<int>(cudaGetLastError());
}

}  // namespace lynx::kernels::device
