#include "common/model/rank_sum.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"

namespace lynx::model {

RankSum::RankSum(collective::Communicator* ranks, int64_t max_rows, int64_t hidden)
    : ranks_(ranks), width_(hidden), part_(ranks == nullptr ? 0 : max_rows * hidden + 1) {}

float* RankSum::Begin(float* hidden, int64_t rows) {
  if (alone()) return hidden;
  std::fill_n(part_.begin(), rows * width_, 0.0f);
  return part_.data();
}

absl::Status RankSum::End(float* hidden, int64_t rows) {
  if (alone()) return absl::OkStatus();
  const auto count = static_cast<size_t>(rows * width_);
  part_[count] = std::exchange(abandon_, false) ? 1.0f : 0.0f;
  LYNX_RETURN_IF_ERROR(ranks_->AllReduceSum(std::span(part_).first(count + 1)));
  if (part_[count] > 0) return absl::CancelledError("a rank has abandoned the step");
  const auto sum = std::span(part_).first(count);
  for (size_t i = 0; i < sum.size(); ++i) hidden[i] += sum[i];
  return absl::OkStatus();
}

absl::Status RankSum::Add(std::span<float> values) {
  return alone() ? absl::OkStatus() : ranks_->AllReduceSum(values);
}

}  // namespace lynx::model
