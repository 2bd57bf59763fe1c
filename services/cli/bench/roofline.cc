#include "services/cli/bench/roofline.h"

#include <algorithm>

#include "services/cli/bench/model_shape.h"

namespace lynx::cli {

std::vector<Work> WorkOfStep(const model::ModelSpec& spec, const StepRows& rows,
                             const model::StepStats& stats) {
  const auto moe_layers =
      std::count(spec.feed_forward.begin(), spec.feed_forward.end(), model::FeedForwardKind::kMoe);
  const int64_t head = int64_t{spec.vocab_size} * spec.hidden_size;
  const int64_t dense =
      spec.layers * AttentionParameters(spec) +
      moe_layers * (spec.experts * spec.hidden_size + SharedParameters(spec)) +
      (spec.layers - moe_layers) * 3 * spec.hidden_size * spec.dense_intermediate_size;
  const int64_t experts = moe_layers * spec.experts_per_token * ExpertParameters(spec);
  const double head_bytes = rows.logits_rows > 0 ? 2.0 * static_cast<double>(head) : 0;
  const auto product = [](int64_t row_count, int64_t parameters) {
    return 2.0 * static_cast<double>(row_count) * static_cast<double>(parameters);
  };
  const int32_t attended_width =
      spec.has_latents() ? 2 * spec.kv_lora_rank + spec.qk_rope_head_dim : 2 * spec.head_dim;
  return {
      {.bytes = static_cast<double>(stats.weight_bytes_read - stats.expert_bytes_read) - head_bytes,
       .operations = product(rows.rows, dense)},
      // Scores and the weighted sum of values, or of latents.
      {.bytes = static_cast<double>(stats.kv_bytes_read),
       .operations = 2.0 * rows.attended * spec.layers * spec.query_heads * attended_width},
      {.bytes = static_cast<double>(stats.expert_bytes_read),
       .operations = product(rows.rows, experts)},
      {.bytes = head_bytes, .operations = product(rows.logits_rows, head)},
  };
}

double TotalBytes(const std::vector<Work>& parts) {
  double bytes = 0;
  for (const Work& part : parts) bytes += part.bytes;
  return bytes;
}

double TotalOperations(const std::vector<Work>& parts) {
  double operations = 0;
  for (const Work& part : parts) operations += part.operations;
  return operations;
}

double RoofSeconds(const std::vector<Work>& parts, double bytes_per_second,
                   double operations_per_second) {
  double seconds = 0;
  for (const Work& part : parts) {
    seconds += std::max(part.bytes / bytes_per_second, part.operations / operations_per_second);
  }
  return seconds;
}

bool AnyBoundByArithmetic(const std::vector<Work>& parts, double bytes_per_second,
                          double operations_per_second) {
  return std::any_of(parts.begin(), parts.end(), [&](const Work& part) {
    return part.operations / operations_per_second > part.bytes / bytes_per_second;
  });
}

}  // namespace lynx::cli
