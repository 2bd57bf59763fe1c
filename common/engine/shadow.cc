#include "common/engine/shadow.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"

namespace lynx::engine {
namespace {

// The largest logit's index, the lowest of equals; -1 when the row is no distribution.
int64_t Top1(std::span<const float> row) {
  int64_t best = -1;
  for (size_t i = 0; i < row.size(); ++i) {
    const float logit = row[i];
    if (std::isnan(logit) || (std::isinf(logit) && logit > 0)) return -1;
    if (std::isinf(logit)) continue;
    if (best < 0 || logit > row[static_cast<size_t>(best)]) best = static_cast<int64_t>(i);
  }
  return best;
}

double KeptMass(const model::StepStats& stats) {
  double sum = 0;
  int layers = 0;
  for (const moe::PlanStats& plan : stats.plans) {
    if (plan.experts == 0) continue;
    sum += static_cast<double>(plan.kept_mass_mean);
    ++layers;
  }
  return layers > 0 ? sum / layers : 1;
}

}  // namespace

Comparison Compare(std::span<const float> exact, std::span<const float> policy) {
  LYNX_CHECK(!exact.empty() && exact.size() == policy.size());
  const int64_t exact_top = Top1(exact);
  if (exact_top < 0) return {.kind = Comparison::Kind::kExactBroken};
  const int64_t policy_top = Top1(policy);
  if (policy_top < 0) return {.kind = Comparison::Kind::kPolicyBroken};

  // With p and q the two softmaxes and zp, zq their normalisers:
  //   KL = sum p (log p - log q) = (sum p (x - y)) - log zp + log zq.
  // Both rows are taken relative to their largest, so that no sum overflows or vanishes.
  const double exact_max = static_cast<double>(exact[static_cast<size_t>(exact_top)]);
  const double policy_max = static_cast<double>(policy[static_cast<size_t>(policy_top)]);
  double exact_sum = 0;
  double policy_sum = 0;
  double weighted = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double x = static_cast<double>(exact[i]) - exact_max;
    const double y = static_cast<double>(policy[i]) - policy_max;
    const double p = std::exp(x);
    exact_sum += p;
    policy_sum += std::exp(y);
    if (p > 0) weighted += p * (x - y);
  }
  const double kl = weighted / exact_sum - std::log(exact_sum) + std::log(policy_sum);
  if (!std::isfinite(kl)) return {.kind = Comparison::Kind::kPolicyBroken};
  return {.kl_nats = std::max(kl, 0.0), .same_top1 = exact_top == policy_top};
}

Shadow::Shadow(int32_t vocab_size, int32_t max_rows)
    : vocab_size_(static_cast<size_t>(vocab_size)), max_rows_(max_rows) {
  LYNX_CHECK(vocab_size > 0 && max_rows > 0);
}

void Shadow::Prepare(std::span<const int32_t> items) {
  LYNX_CHECK(std::is_sorted(items.begin(), items.end()));
  items_.assign(items.begin(),
                items.begin() + std::min<std::ptrdiff_t>(std::ssize(items), max_rows_));
  policies_.clear();
  ran_ = false;
  outcome_ = Outcome::kNothing;
  status_ = absl::OkStatus();
  results_.clear();
  kept_mass_ = 1;
}

void Shadow::CompareWithExact(std::span<const int32_t> items) { Prepare(items); }

void Shadow::CompareWithPolicies(std::span<const int32_t> items,
                                 std::span<const moe::Policy* const> policies) {
  LYNX_CHECK(!policies.empty());
  Prepare(items);
  policies_.assign(policies.begin(), policies.end());
}

bool Shadow::Suits(std::span<const model::SequenceRows> batch) {
  LYNX_CHECK(policies_.empty() || policies_.size() == batch.size());
  LYNX_CHECK(items_.empty() || items_.back() < std::ssize(batch));
  const auto decode = [](const model::SequenceRows& rows) { return rows.decode; };
  if (batch.size() < 2 || !std::all_of(batch.begin(), batch.end(), decode)) return false;
  // A token that is computed again has no logits.
  std::erase_if(items_,
                [&](int32_t item) { return batch[static_cast<size_t>(item)].logits_rows != 1; });
  return !items_.empty();
}

void Shadow::Run(model::ModelRunner& runner, std::span<const model::SequenceRows> batch,
                 model::StepObserver* observer) {
  if (!Suits(batch)) {
    outcome_ = Outcome::kUnsuitable;
    return;
  }
  batch_.clear();
  if (policies_.empty()) {
    for (int32_t item : items_) {
      batch_.push_back(batch[static_cast<size_t>(item)]);
      batch_.back().policy = nullptr;
    }
  } else {
    batch_.assign(batch.begin(), batch.end());
    for (size_t i = 0; i < batch_.size(); ++i) {
      batch_[i].policy = policies_[i];
      batch_[i].logits_rows = 0;
    }
    for (int32_t item : items_) batch_[static_cast<size_t>(item)].logits_rows = 1;
  }
  status_ = runner.Step(batch_, observer);
  if (!status_.ok()) {
    outcome_ = Outcome::kFailed;
    return;
  }
  const std::span<const float> logits = runner.logits();
  LYNX_CHECK_MSG(logits.size() == items_.size() * vocab_size_,
                 "the runner returned other logits rows than were asked for");
  logits_.assign(logits.begin(), logits.end());
  if (!policies_.empty()) kept_mass_ = KeptMass(runner.stats());
  ran_ = true;
}

void Shadow::Finish(const model::ModelRunner& runner, std::span<const model::SequenceRows> batch) {
  if (!ran_) return;
  const bool exact_shadow = policies_.empty();
  if (exact_shadow) kept_mass_ = KeptMass(runner.stats());
  const std::span<const float> shadow = logits_;
  size_t next = 0;  // In items_.
  size_t row = 0;   // In the step's logits.
  for (size_t i = 0; i < batch.size() && next < items_.size(); ++i) {
    if (items_[next] == static_cast<int32_t>(i)) {
      const auto of_step = runner.logits().subspan(row * vocab_size_, vocab_size_);
      const auto of_shadow = shadow.subspan(next * vocab_size_, vocab_size_);
      results_.push_back(
          {.item = items_[next],
           .comparison = exact_shadow ? Compare(of_shadow, of_step) : Compare(of_step, of_shadow)});
      ++next;
    }
    row += static_cast<size_t>(batch[i].logits_rows);
  }
  outcome_ = Outcome::kCompared;
}

}  // namespace lynx::engine
