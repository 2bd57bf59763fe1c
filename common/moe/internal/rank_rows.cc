#include <algorithm>
#include <cmath>
#include <limits>

#include "common/base/check.h"
#include "common/moe/gate_math.h"
#include "common/moe/internal/insert_best.h"
#include "common/moe/internal/row_ops.h"
#include "common/moe/internal/stages.h"

namespace lynx::moe::internal {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// NaN, +Inf, or too few finite ones.
bool CannotRank(const float* scores, size_t count, size_t top_k, bool& masked) {
  const int32_t usable = BestRowOps().count_usable(scores, count);
  if (usable < static_cast<int32_t>(top_k)) return true;
  masked |= usable < static_cast<int32_t>(count);
  return false;
}

// A comparison that puts NaN last keeps the order total for rows that cannot be ranked.
void RankAnyhow(const float* scores, size_t count, std::span<int32_t> ids) {
  const auto rank = [&](int32_t e) {
    const float score = scores[static_cast<size_t>(e)];
    return std::isnan(score) ? -kInf : score;
  };
  size_t held = 0;
  for (size_t e = 0; e < count; ++e) {
    held = InsertBest(ids.data(), held, ids.size(), static_cast<int32_t>(e),
                      [&](int32_t a, int32_t b) { return rank(a) > rank(b); });
  }
}

// The scores of experts in groups that the row may not use become -Inf.
void MaskGroups(const Gate& gate, const float* judged, size_t experts, float* group_scores,
                float* scores) {
  const auto groups = static_cast<size_t>(gate.groups);
  const size_t size = experts / groups;
  for (size_t g = 0; g < groups; ++g) {
    float first = -kInf;
    float second = -kInf;
    for (size_t e = g * size; e < (g + 1) * size; ++e) {
      second = std::max(second, std::min(first, judged[e]));
      first = std::max(first, judged[e]);
    }
    const bool sum = gate.group_score == Gate::GroupScore::kTopTwoSum && size > 1;
    group_scores[g] = sum ? first + second : first;
  }
  for (size_t g = 0; g < groups; ++g) {
    int32_t better = 0;
    for (size_t other = 0; other < groups; ++other) {
      const bool ahead = group_scores[other] > group_scores[g] ||
                         (group_scores[other] == group_scores[g] && other < g);
      better += ahead ? 1 : 0;
    }
    if (better >= gate.groups_kept) std::fill_n(scores + g * size, size, -kInf);
  }
}

// What a row ranks by where that is not its logits.
void Score(const RouterInput& input, const float* logits, Workspace& workspace, float* scores) {
  const size_t experts = workspace.experts;
  const Gate& gate = input.gate;
  const bool by_sum = gate.groups > 1 && gate.group_score == Gate::GroupScore::kTopTwoSum;
  std::copy_n(logits, experts, scores);
  const float* judged = scores;
  if (by_sum || !input.bias.empty()) {
    float* values = workspace.row_buffer.data();
    if (gate.score == Gate::Score::kSigmoid) {
      std::transform(logits, logits + experts, values, GateSigmoid);
    } else {
      GateExps(logits, experts, *std::max_element(logits, logits + experts), values);
    }
    for (size_t e = 0; e < experts; ++e) {
      if (!input.bias.empty()) values[e] += input.bias[e];
      if (logits[e] == -kInf) values[e] = -kInf;
    }
    if (!input.bias.empty()) std::copy_n(values, experts, scores);
    judged = values;
  }
  if (gate.groups > 1) {
    MaskGroups(gate, judged, experts, workspace.group_buffer.data(), scores);
  }
}

bool KeepsItsOwn(const RouterInput& input, int32_t row) {
  if (input.policies.empty()) return true;
  const Policy* policy = input.policies[static_cast<size_t>(row)];
  return policy == nullptr || !policy->lossy();
}

}  // namespace

void RankRows(const RouterInput& input, Workspace& workspace) {
  const Gate& gate = input.gate;
  workspace.experts = static_cast<size_t>(input.experts);
  workspace.top_k = static_cast<size_t>(input.top_k);
  workspace.masked = false;
  const bool plain = input.bias.empty() && gate.groups == 1;
  LYNX_CHECK(plain ||
             (gate.groups > 0 && input.experts % gate.groups == 0 && gate.groups_kept > 0 &&
              input.top_k <= gate.groups_kept * (input.experts / gate.groups)));
  workspace.scores = plain ? input.logits.data() : workspace.score_buffer.data();
  workspace.top_rows.clear();
  for (int32_t row = 0; row < input.rows; ++row) {
    const auto r = static_cast<size_t>(row);
    if (!input.valid.empty() && input.valid[r] == 0) {
      workspace.states[r] = RowState::kPadding;
      continue;
    }
    const float* logits = LogitsOf(input, row);
    bool masked = false;
    bool bad = CannotRank(logits, workspace.experts, workspace.top_k, masked);
    if (!bad && !plain) {
      float* scores = workspace.score_buffer.data() + r * workspace.experts;
      Score(input, logits, workspace, scores);
      bad = CannotRank(scores, workspace.experts, workspace.top_k, masked);
    }
    if (bad) {
      workspace.states[r] = RowState::kBad;
      RankAnyhow(logits, workspace.experts, workspace.ExactOf(row));
      continue;
    }
    workspace.masked |= masked;
    workspace.top_rows.push_back({workspace.ScoresOf(row), workspace.ExactOf(row).data()});
    workspace.states[r] = KeepsItsOwn(input, row) ? RowState::kOwn : RowState::kRemapped;
  }
  BestRowOps().top(workspace.top_rows.data(), workspace.top_rows.size(), nullptr, workspace.experts,
                   workspace.top_k);
}

}  // namespace lynx::moe::internal
