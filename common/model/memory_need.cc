#include "common/model/memory_need.h"

#include <algorithm>
#include <limits>

#include "common/kv/kv_layout.h"
#include "kernels/attention/attention_workspace.h"

namespace lynx::model {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

int64_t Sum(int64_t a, int64_t b) { return a > kMost - b ? kMost : a + b; }
int64_t Product(int64_t a, int64_t b) { return b != 0 && a > kMost / b ? kMost : a * b; }

// Of one row: queries, keys and values, and the result, each in the latents' space, too, if a model
// has them.
int64_t AttentionElements(const model::ModelSpec& spec) {
  if (!spec.has_latents()) return int64_t{2} * spec.head_dim * (spec.query_heads + spec.kv_heads);
  const int64_t latent = spec.kv_lora_rank + spec.qk_rope_head_dim;
  return 2 * (spec.q_lora_rank + latent +
              spec.query_heads * (spec.head_dim + latent + spec.v_head_dim));
}

// Of one row: what an expert takes and returns and what lies between, for each of its experts; a
// dense layer has the same room.
int64_t ExpertElements(const ModelSpec& spec) {
  const int64_t intermediate = std::max(
      {spec.dense_intermediate_size, spec.shared_intermediate_size, spec.expert_intermediate_size});
  return std::max(1, spec.experts_per_token) * (2 * int64_t{spec.hidden_size} + intermediate);
}

}  // namespace

int64_t MemoryNeed::total() const { return Sum(Sum(weights, kv), steps); }

int64_t DeviceRoom::left() const {
  const int64_t taken = Sum(need.total(), reserve);
  return taken < free ? free - taken : 0;
}

MemoryNeed NeedOf(const ModelSpec& spec, int64_t weight_bytes, const StepSizes& sizes) {
  const kv::KvLayout layout = KvLayoutOf(spec, sizes.kv_dtype);
  // A row's hidden state and its normed copies beside what its layers hold.
  const int64_t row = int64_t{4} * spec.hidden_size + AttentionElements(spec) + spec.experts;
  // Rows of all replicas may need experts of this rank, and this rank's those of all others.
  const int64_t exchanged =
      sizes.replicas > 1 && spec.experts > 0 ? 4 * int64_t{spec.hidden_size} + 3 * spec.experts : 0;
  const int64_t expert_rows =
      Product(Product(sizes.rows, sizes.replicas), ExpertElements(spec) + exchanged);
  const int64_t logits = Sum(Product(sizes.logits_rows, 2 * int64_t{spec.hidden_size}),
                             Product(Product(sizes.logits_rows, sizes.replicas), spec.vocab_size));
  // A cosine and a sine for each pair of elements, of the positions that KV can hold.
  const int64_t angles =
      std::min<int64_t>(spec.max_positions, layout.groups.MostTokens(sizes.kv_blocks)) *
      spec.rotary_dim;
  const int64_t elements = Sum(Sum(Sum(Product(sizes.rows, row), expert_rows), logits), angles);
  return {.weights = weight_bytes,
          .kv = Product(layout.BlockBytes(), sizes.kv_blocks),
          .steps = Sum(Product(elements, static_cast<int64_t>(sizeof(float))),
                       Product(kernels::AttentionWorkspace::BytesFor(1), sizes.threads))};
}

}  // namespace lynx::model
