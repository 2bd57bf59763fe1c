#include <algorithm>
#include <cmath>
#include <limits>

#include "common/moe/internal/insert_best.h"
#include "common/moe/internal/row_ops.h"
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

BinRule RuleOf(const Policy& policy, Workspace& workspace, int32_t row) {
  const float* scores = workspace.ScoresOf(row);
  const std::span<const int32_t> exact = workspace.ExactOf(row);
  const double best = scores[exact.front()];
  // As a size: -0 - 0 is -0, by which gaps would become negative.
  const double spread = std::abs(best - static_cast<double>(scores[exact.back()]));
  return {.alpha = policy.alpha,
          .last = policy.beta == Policy::kUnbounded ? kNoLimit : policy.beta,
          .best = best,
          .unit = policy.self_scaled ? spread : 1};
}

// A whole number, without a limit where the rule has none.
double BinOf(const BinRule& rule, float score) {
  return std::floor(rule.Unrounded(score));  // The last bin is a whole number, or none.
}

// Few bins: `bins` of every voter, and `liking` from counts packed into one number an expert.
void LikePacked(const Policy& policy, Workspace& workspace) {
  uint64_t unit[8] = {};  // The last bin's is 0.
  for (int32_t bin = 0; bin < policy.beta; ++bin) unit[bin] = LikingUnit(bin);
  for (size_t e = 0; e < workspace.experts; ++e) workspace.liking[e] = NobodysLiking(e);
  for (int32_t row : workspace.voters) {
    BestRowOps().bin(RuleOf(policy, workspace, row), unit, workspace.ScoresOf(row),
                     workspace.experts, workspace.BinsOf(row), workspace.liking.data());
  }
}

// Any number of bins: counting likings compare as sorted lists of bins do, the other way round.
// `liking` is the expert's place among those lists, equal for equal lists.
void LikeSorted(const Policy& policy, Workspace& workspace) {
  const size_t voters = workspace.voters.size();
  for (size_t v = 0; v < voters; ++v) {
    const BinRule rule = RuleOf(policy, workspace, workspace.voters[v]);
    const float* scores = workspace.ScoresOf(workspace.voters[v]);
    for (size_t e = 0; e < workspace.experts; ++e) {
      workspace.columns[e * voters + v] = BinOf(rule, scores[e]);
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
    workspace.liking[static_cast<size_t>(e)] =
        (place << kLikingShift) + NobodysLiking(static_cast<size_t>(e));
  }
}

// Marks the votes of one row, whose bins `bin_of` tells. `order` has the experts by liking.
template <typename BinOf>
void Vote(bool index_ties, int32_t row, Workspace& workspace, const BinOf& bin_of) {
  const float* scores = workspace.ScoresOf(row);
  const std::span<const int32_t> exact = workspace.ExactOf(row);
  const auto boundary = bin_of(static_cast<size_t>(exact.back()));
  // Loops go over all k where they could stop earlier: where, nothing could predict.
  size_t open = exact.size();
  for (int32_t e : exact) {
    const uint8_t sure = bin_of(static_cast<size_t>(e)) != boundary ? 1 : 0;
    workspace.selected[static_cast<size_t>(e)] |= sure;
    open -= sure;
  }
  const auto liking = [&](size_t i) {
    return workspace.liking[static_cast<size_t>(workspace.order[i])] >> kLikingShift;
  };
  const auto in_boundary = [&](size_t i) {
    const auto e = static_cast<size_t>(workspace.order[i]);
    return static_cast<size_t>(bin_of(e) == boundary) & static_cast<size_t>(scores[e] > -kInf);
  };
  // The first of the boundary bin by liking: it has at least as many as are open.
  int32_t* picks = workspace.picks.data();
  size_t held = 0;
  size_t next = 0;
  for (; held < open; ++next) {
    picks[held] = workspace.order[next];
    held += in_boundary(next);  // Without a branch, which nothing could predict.
  }
  if (open > 0 && !index_ties) {
    // Of those liked as much as the last pick, the row's own scores choose.
    const uint64_t liked = liking(next - 1);
    size_t certain = next;
    size_t tied = 0;
    for (; next < workspace.experts && liking(next) == liked; ++next) tied += in_boundary(next);
    if (tied > 0) {
      const auto better = [&](int32_t a, int32_t b) { return scores[a] > scores[b]; };
      while (certain > 0 && liking(certain - 1) == liked) held -= in_boundary(--certain);
      int32_t* chosen = picks + held;
      size_t count = 0;
      for (size_t i = certain; i < next; ++i) {
        if (in_boundary(i) == 0) continue;
        count = InsertBest(chosen, count, open - held, workspace.order[i], better);
      }
    }
  }
  for (size_t j = 0; j < exact.size(); ++j) {
    workspace.selected[static_cast<size_t>(picks[j])] |= j < open ? 1 : 0;
  }
}

}  // namespace

void SelectLynx(const Policy& policy, Workspace& workspace) {
  const bool index_ties = policy.kind == Policy::Kind::kLynxCompat;
  const bool packed = policy.beta >= 0 && policy.beta <= kLastPackedBin &&
                      workspace.voters.size() <= kMaxPackedVoters;
  if (packed) {
    LikePacked(policy, workspace);
  } else {
    LikeSorted(policy, workspace);
  }
  BestRowOps().order(workspace.liking.data(), workspace.experts, workspace.order.data());
  for (int32_t row : workspace.voters) {
    if (packed) {
      const uint8_t* bins = workspace.BinsOf(row);
      Vote(index_ties, row, workspace, [&](size_t e) { return bins[e]; });
    } else {
      const BinRule rule = RuleOf(policy, workspace, row);
      const float* scores = workspace.ScoresOf(row);
      Vote(index_ties, row, workspace, [&](size_t e) { return BinOf(rule, scores[e]); });
    }
  }
  SelectFloors(policy.kept_ranks(), workspace);
}

}  // namespace lynx::moe::internal
