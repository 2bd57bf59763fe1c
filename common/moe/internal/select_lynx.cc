#include <algorithm>
#include <cmath>
#include <limits>

#include "common/moe/internal/stages.h"

// lynx: every voter votes for k experts, by
//   1. its bin of the expert, j = min(beta, floor(alpha * (its best score - the expert's)));
//   2. how the batch likes the expert: how many voters have it in bin 0, then in bin 1, and so on;
//   3. its own score, then the lower id.
// As bins follow scores, a voter's best k reach into one boundary bin: it votes for all in earlier
// bins, and fills up from the boundary bin by 2 and 3. A voter's own part in 2 need not be taken
// out, as it is the same for all experts of a bin.
namespace lynx::moe::internal {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr double kNoLimit = std::numeric_limits<double>::infinity();

// Likings pack into 64 bits as one count for each bin but the last, which follows from the others.
constexpr int32_t kPackedBins = 4;
constexpr size_t kMaxPackedVoters = 0xFFFF;

// The bins of one row.
class Bins {
 public:
  Bins(const Policy& policy, const float* scores, std::span<const int32_t> exact)
      : alpha_(policy.alpha),
        last_(policy.beta == Policy::kUnbounded ? kNoLimit : policy.beta),
        best_(scores[exact.front()]),
        // As a size: -0 - 0 is -0, by which gaps would become negative.
        unit_(policy.self_scaled ? std::abs(best_ - static_cast<double>(scores[exact.back()]))
                                 : 1) {}

  // A whole number: the value is cut off at the last bin before anything is cast.
  double Of(float score) const {
    const double gap = best_ - static_cast<double>(score);
    if (gap == 0) return 0;  // Also where the unit is 0.
    const double bin = alpha_ * (unit_ == 1 ? gap : gap / unit_);
    if (bin >= last_) return last_;
    return bin < 9e15 ? static_cast<double>(static_cast<int64_t>(bin)) : bin;
  }

 private:
  const double alpha_;
  const double last_;
  const double best_;
  const double unit_;
};

Bins BinsOf(const Policy& policy, Workspace& workspace, int32_t row) {
  return Bins(policy, workspace.ScoresOf(row), workspace.ExactOf(row));
}

// Few bins: `bins` of every voter, and `liking` from counts packed into one number an expert.
void LikePacked(const Policy& policy, Workspace& workspace) {
  uint64_t unit[kPackedBins + 1] = {};  // The last bin's is 0.
  for (int32_t bin = 0; bin < policy.beta; ++bin) unit[bin] = uint64_t{1} << (48 - 16 * bin);
  std::fill_n(workspace.liking.begin(), workspace.experts, uint64_t{0});
  for (int32_t row : workspace.voters) {
    const Bins bins = BinsOf(policy, workspace, row);
    const float* scores = workspace.ScoresOf(row);
    uint8_t* out = workspace.bins.data() + static_cast<size_t>(row) * workspace.experts;
    for (size_t e = 0; e < workspace.experts; ++e) {
      out[e] = static_cast<uint8_t>(bins.Of(scores[e]));
      workspace.liking[e] += unit[out[e]];
    }
  }
}

// Any number of bins: counting likings compare as sorted lists of bins do, the other way round.
// `liking` is the expert's place among those lists, equal for equal lists.
void LikeSorted(const Policy& policy, Workspace& workspace) {
  const size_t voters = workspace.voters.size();
  for (size_t v = 0; v < voters; ++v) {
    const Bins bins = BinsOf(policy, workspace, workspace.voters[v]);
    const float* scores = workspace.ScoresOf(workspace.voters[v]);
    for (size_t e = 0; e < workspace.experts; ++e) {
      workspace.columns[e * voters + v] = bins.Of(scores[e]);
    }
  }
  const auto column = [&](size_t e) {
    return std::span(workspace.columns).subspan(e * voters, voters);
  };
  for (size_t e = 0; e < workspace.experts; ++e) {
    std::sort(column(e).begin(), column(e).end());
    workspace.order[e] = static_cast<int32_t>(e);
  }
  const auto less_liked = [&](int32_t a, int32_t b) {
    const auto left = column(static_cast<size_t>(a));
    const auto right = column(static_cast<size_t>(b));
    return std::lexicographical_compare(right.begin(), right.end(), left.begin(), left.end());
  };
  const auto end = workspace.order.begin() + static_cast<ptrdiff_t>(workspace.experts);
  std::sort(workspace.order.begin(), end, less_liked);
  uint64_t place = 0;
  for (size_t i = 0; i < workspace.experts; ++i) {
    const int32_t e = workspace.order[i];
    if (i > 0 && less_liked(workspace.order[i - 1], e)) ++place;
    workspace.liking[static_cast<size_t>(e)] = place;
  }
}

// Marks the votes of one row, whose bins `bin_of` tells.
template <typename BinOf>
void Vote(bool index_ties, int32_t row, Workspace& workspace, const BinOf& bin_of) {
  const float* scores = workspace.ScoresOf(row);
  const std::span<const int32_t> exact = workspace.ExactOf(row);
  const auto boundary = bin_of(static_cast<size_t>(exact.back()));
  size_t sure = 0;
  for (; bin_of(static_cast<size_t>(exact[sure])) != boundary; ++sure) {
    workspace.selected[static_cast<size_t>(exact[sure])] = 1;
  }
  const uint64_t* liking = workspace.liking.data();
  const auto better = [&](int32_t a, int32_t b) {
    if (liking[a] != liking[b]) return liking[a] > liking[b];
    return !index_ties && scores[a] > scores[b];
  };
  int32_t* best = workspace.order.data();
  size_t held = 0;
  for (size_t e = 0; e < workspace.experts; ++e) {
    if (bin_of(e) != boundary || scores[e] == -kInf) continue;
    held = InsertBest(best, held, exact.size() - sure, static_cast<int32_t>(e), better);
  }
  for (size_t i = 0; i < held; ++i) workspace.selected[static_cast<size_t>(best[i])] = 1;
}

}  // namespace

void SelectLynx(const Policy& policy, Workspace& workspace) {
  const bool index_ties = policy.kind == Policy::Kind::kLynxCompat;
  if (policy.beta >= 0 && policy.beta <= kPackedBins &&
      workspace.voters.size() <= kMaxPackedVoters) {
    LikePacked(policy, workspace);
    for (int32_t row : workspace.voters) {
      const uint8_t* bins = workspace.bins.data() + static_cast<size_t>(row) * workspace.experts;
      Vote(index_ties, row, workspace, [&](size_t e) { return bins[e]; });
    }
  } else {
    LikeSorted(policy, workspace);
    for (int32_t row : workspace.voters) {
      const Bins bins = BinsOf(policy, workspace, row);
      const float* scores = workspace.ScoresOf(row);
      Vote(index_ties, row, workspace, [&](size_t e) { return bins.Of(scores[e]); });
    }
  }
  SelectFloors(policy.kept_ranks(), workspace);
}

}  // namespace lynx::moe::internal
