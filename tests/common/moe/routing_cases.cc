#include "tests/common/moe/routing_cases.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <sstream>

#include "common/moe/internal/stages.h"
#include "gtest/gtest.h"

namespace lynx::moe::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

RouterInput InputOf(const Batch& batch, std::span<const Policy* const> policies) {
  return {.logits = batch.logits,
          .rows = batch.rows,
          .experts = batch.experts,
          .top_k = batch.top_k,
          .layer = 0,
          .gate = batch.gate,
          .bias = batch.bias,
          .phase = batch.phase,
          .policies = policies,
          .valid = batch.valid,
          .remap_mixed = batch.remap_mixed,
          .expert_cost = batch.expert_cost,
          .placement = batch.placement.ranks > 0 ? &batch.placement : nullptr};
}

std::vector<const Policy*> PoliciesOf(const Batch& batch, const Policy& policy) {
  std::vector<const Policy*> policies(static_cast<size_t>(batch.rows), &policy);
  for (int32_t row = 0; row < batch.rows; ++row) {
    if (batch.OptedOut(row)) policies[static_cast<size_t>(row)] = nullptr;
  }
  return policies;
}

}  // namespace

Batch Batch::Of(const std::vector<std::vector<float>>& rows, int32_t top_k) {
  Batch batch;
  batch.rows = static_cast<int32_t>(rows.size());
  batch.experts = static_cast<int32_t>(rows.at(0).size());
  batch.top_k = top_k;
  for (const std::vector<float>& row : rows) {
    batch.logits.insert(batch.logits.end(), row.begin(), row.end());
  }
  return batch;
}

std::vector<float> Batch::Row(int32_t row) const {
  const auto begin = logits.begin() + static_cast<ptrdiff_t>(row) * experts;
  return {begin, begin + experts};
}

void Batch::SetRow(int32_t row, const std::vector<float>& row_logits) {
  std::copy(row_logits.begin(), row_logits.end(),
            logits.begin() + static_cast<ptrdiff_t>(row) * experts);
}

Batch Batch::Reordered(const std::vector<int32_t>& order) const {
  Batch result = *this;
  result.rows = static_cast<int32_t>(order.size());
  result.logits.resize(order.size() * static_cast<size_t>(experts));
  if (!valid.empty()) result.valid.resize(order.size());
  if (!opted_out.empty()) result.opted_out.resize(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    const auto from = static_cast<size_t>(order[i]);
    result.SetRow(static_cast<int32_t>(i), Row(order[i]));
    if (!valid.empty()) result.valid[i] = valid[from];
    if (!opted_out.empty()) result.opted_out[i] = opted_out[from];
  }
  return result;
}

std::string Batch::Describe() const {
  std::ostringstream text;
  text << rows << " rows, N " << experts << ", k " << top_k;
  if (logits.size() > 200) return text.str();
  for (int32_t row = 0; row < rows; ++row) {
    text << "\n ";
    for (float logit : Row(row)) text << " " << logit;
    if (!IsValid(row)) text << " (padding)";
    if (OptedOut(row)) text << " (opted out)";
  }
  return text.str();
}

Rows PlanOf(const Batch& batch, const std::vector<const Policy*>& policies) {
  Planner planner(std::max(1, batch.rows), batch.experts, batch.top_k);
  RoutingPlan plan(std::max(1, batch.rows), batch.experts, batch.top_k);
  planner.MakePlan(InputOf(batch, policies), plan);

  Rows rows;
  rows.active.assign(plan.active().begin(), plan.active().end());
  rows.kept_mass.assign(plan.kept_mass().begin(), plan.kept_mass().end());
  rows.stats = plan.stats();
  EXPECT_EQ(plan.rows(), batch.rows);
  for (int32_t row = 0; row < batch.rows; ++row) {
    const auto begin = static_cast<size_t>(row) * static_cast<size_t>(plan.top_k());
    const auto width = static_cast<size_t>(plan.row_width(row));
    const auto ids = plan.ids().subspan(begin, static_cast<size_t>(plan.top_k()));
    const auto weights = plan.weights().subspan(begin, static_cast<size_t>(plan.top_k()));
    EXPECT_EQ(width > 0, batch.IsValid(row));
    rows.ids.emplace_back(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(width));
    rows.weights.emplace_back(weights.begin(), weights.begin() + static_cast<ptrdiff_t>(width));
    for (size_t j = width; j < ids.size(); ++j) {
      // What fills up loads nothing, and adds nothing unless the row is lost anyway.
      EXPECT_TRUE(rows.active.empty() ||
                  std::binary_search(rows.active.begin(), rows.active.end(), ids[j]));
      EXPECT_EQ(weights[j], 0);
    }
  }
  return rows;
}

Rows PlanOf(const Batch& batch, const Policy& policy) {
  return PlanOf(batch, PoliciesOf(batch, policy));
}

Rows ExactPlanOf(const Batch& batch) {
  return PlanOf(batch, std::vector<const Policy*>(static_cast<size_t>(batch.rows)));
}

std::set<int32_t> SelectedBy(const Batch& batch, const Policy& policy) {
  internal::Workspace workspace(batch.rows, batch.experts, batch.top_k);
  const std::vector<const Policy*> policies = PoliciesOf(batch, policy);
  const RouterInput input = InputOf(batch, policies);
  RankRows(input, workspace);
  for (int32_t row = 0; row < batch.rows; ++row) {
    if (workspace.Votes(row)) workspace.voters.push_back(row);
  }
  switch (policy.kind) {
    case Policy::Kind::kLynx:
    case Policy::Kind::kLynxCompat:
      SelectLynx(policy, workspace);
      break;
    case Policy::Kind::kOea:
    case Policy::Kind::kPrune:
      SelectTopRanks(input, policy, workspace);
      break;
    case Policy::Kind::kVote:
      SelectVote(input, policy, workspace);
      break;
    case Policy::Kind::kBudget:
      SelectBudget(input, policy, workspace);
      break;
    case Policy::Kind::kMarginal:
      SelectMarginal(input, policy, workspace);
      break;
    default:
      ADD_FAILURE() << ToString(policy);
  }
  std::set<int32_t> selected;
  for (int32_t e = 0; e < batch.experts; ++e) {
    if (workspace.selected[static_cast<size_t>(e)] != 0) selected.insert(e);
  }
  return selected;
}

Policy Parse(const std::string& text) {
  const absl::StatusOr<Policy> policy = ParsePolicy(text);
  EXPECT_TRUE(policy.ok()) << policy.status();
  return policy.value_or(Policy{});
}

Draw::Draw() {
  const char* fixed = std::getenv("LYNX_TEST_SEED");
  const auto seed = fixed != nullptr ? static_cast<uint32_t>(std::strtoul(fixed, nullptr, 10))
                                     : std::random_device()();
  std::cout << "seed " << seed << " (LYNX_TEST_SEED repeats it)" << std::endl;
  rng_.seed(seed);
}

int32_t Draw::Int(int32_t least, int32_t most) {
  return std::uniform_int_distribution<int32_t>(least, most)(rng_);
}

double Draw::Real(double least, double most) {
  return std::uniform_real_distribution<double>(least, most)(rng_);
}

Batch Draw::NextBatch(const Options& options) {
  static constexpr int32_t kExperts[] = {8, 8, 11, 16, 32, 64, 64, 128, 256};
  static constexpr float kSigmas[] = {0.2f, 1, 1, 2, 6};
  Batch batch;
  do {
    batch.experts = kExperts[Int(0, 8)];
  } while (batch.experts > options.max_experts);
  batch.top_k = Int(1, std::min(8, batch.experts - 1));
  // Few rows make many small batches, where rare things happen.
  batch.rows =
      Int(options.min_rows, Chance(0.5) ? std::max(options.min_rows, 5) : options.max_rows);
  const float sigma = kSigmas[Int(0, 4)];
  const float shared = Chance(0.5) ? static_cast<float>(Real(0, 2)) : 0;
  const bool ties = options.ties && Chance(0.3);
  std::normal_distribution<float> normal;
  std::vector<float> common(static_cast<size_t>(batch.experts));
  for (float& value : common) value = normal(rng_);
  for (int32_t row = 0; row < batch.rows; ++row) {
    for (int32_t e = 0; e < batch.experts; ++e) {
      float logit = sigma * (normal(rng_) + shared * common[static_cast<size_t>(e)]);
      if (ties) logit = std::round(logit * 4) / 4;
      batch.logits.push_back(logit);
    }
  }
  if (options.masks && Chance(0.2)) {
    for (int32_t row = 0; row < batch.rows; ++row) {
      std::vector<float> logits = batch.Row(row);
      const int32_t masked = Int(0, batch.experts - batch.top_k);
      for (int32_t i = 0; i < masked; ++i)
        logits[static_cast<size_t>(Int(0, batch.experts - 1))] = -kInf;
      batch.SetRow(row, logits);
    }
  }
  const auto some_rows = [&](double share) {
    std::vector<uint8_t> marks(static_cast<size_t>(batch.rows));
    for (uint8_t& mark : marks) mark = Chance(share) ? 1 : 0;
    return marks;
  };
  if (options.padding && Chance(0.3)) batch.valid = some_rows(0.7);
  if (options.opt_outs && Chance(0.2)) batch.opted_out = some_rows(0.3);
  return batch;
}

Policy Draw::NextPolicy(const Batch& batch, std::optional<Policy::Kind> kind) {
  using Kind = Policy::Kind;
  static constexpr Kind kKinds[] = {Kind::kPrune, Kind::kVote,   Kind::kLynx,
                                    Kind::kOea,   Kind::kBudget, Kind::kMarginal};
  Policy policy{.kind = kind.value_or(kKinds[Int(0, 5)])};
  const int32_t floor = Chance(0.5) ? 0 : Int(0, batch.top_k);
  switch (policy.kind) {
    case Kind::kLynx:
    case Kind::kLynxCompat: {
      static constexpr double kAlphas[] = {0.5, 0.7, 1, 1, 3, 3, 10};
      policy.alpha = kAlphas[Int(0, 6)];
      policy.beta = Chance(0.1) ? Policy::kUnbounded : Chance(0.2) ? Int(5, 12) : Int(0, 4);
      if (policy.kind == Kind::kLynx) {
        policy.floor = floor;
        policy.self_scaled = Chance(0.15);
      }
      break;
    }
    case Kind::kPrune:
    case Kind::kOea:
      policy.k0 = Int(1, batch.top_k);
      break;
    case Kind::kVote:
      policy.experts = Int(batch.top_k, batch.experts);
      policy.floor = floor;
      break;
    case Kind::kBudget: {
      const int32_t form = Int(0, 4);
      if (form == 0 || form == 4) policy.experts = Int(batch.top_k, batch.experts);
      if (form == 1) policy.fraction = Real(0.05, 1);
      if (form == 2) policy.coverage = Real(0.3, 1);
      if (form >= 3) policy.row_coverage = Real(0.3, 1);
      policy.floor = floor;
      break;
    }
    case Kind::kMarginal:
      policy.lambda = Real(0, 1) * batch.rows / 8;
      policy.floor = floor;
      break;
    default:
      break;
  }
  EXPECT_TRUE(CheckPolicy(policy, batch.experts, batch.top_k).ok()) << ToString(policy);
  return policy;
}

}  // namespace lynx::moe::testing
