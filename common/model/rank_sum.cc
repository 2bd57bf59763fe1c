#include "common/model/rank_sum.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"
#include "kernels/moe/order_free_sum.h"

namespace lynx::model {

RankSum::RankSum(collective::Communicator* ranks, bool of_replica, int64_t max_rows, int64_t hidden,
                 bool order_free)
    : ranks_(ranks),
      of_replica_(of_replica),
      width_(hidden),
      part_(ranks == nullptr ? 0 : static_cast<size_t>(max_rows * hidden + 1)),
      summands_(order_free ? part_.size() : 0) {}

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
  if (part_[count] > 0) {
    if (!of_replica_) return absl::CancelledError("a rank has abandoned the step");
    abandon_ = true;
  }
  const auto sum = std::span(part_).first(count);
  for (size_t i = 0; i < sum.size(); ++i) hidden[i] += sum[i];
  return absl::OkStatus();
}

double* RankSum::BeginSummands(int64_t rows) {
  std::fill_n(summands_.begin(), rows * width_, 0.0);
  return summands_.data();
}

absl::Status RankSum::EndSummands(float* hidden, int64_t rows) {
  const auto count = static_cast<size_t>(rows * width_);
  for (size_t i = 0; i < count; ++i) summands_[i] += kernels::ToSummand(double{part_[i]});
  summands_[count] = std::exchange(abandon_, false) ? 1.0 : 0.0;
  LYNX_RETURN_IF_ERROR(ranks_->AllReduceSum(std::span(summands_).first(count + 1)));
  if (summands_[count] > 0) return absl::CancelledError("a rank has abandoned the step");
  for (size_t i = 0; i < count; ++i) hidden[i] += static_cast<float>(summands_[i]);
  return absl::OkStatus();
}

absl::Status RankSum::Add(std::span<float> values) {
  return alone() ? absl::OkStatus() : ranks_->AllReduceSum(values);
}

}  // namespace lynx::model
