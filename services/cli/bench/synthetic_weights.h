#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model_spec.h"
#include "common/model/tensor.h"

namespace lynx::cli {

// Random bf16 weights of a model, for benches: as large as real ones where they are read, yet some
// tens of MB of memory. All tensors lie in one range of addresses into which the same random pages
// are mapped over and over; each starts at another place of it.
//
// Values are those of a trained model in size (uniform, standard deviation 0.02), norms are ones.
class SyntheticWeights {
 public:
  // ResourceExhausted when the system refuses the memory.
  static absl::StatusOr<SyntheticWeights> Create(const model::ModelSpec& spec, uint64_t seed);
  ~SyntheticWeights();
  SyntheticWeights(SyntheticWeights&& other) noexcept;
  SyntheticWeights& operator=(SyntheticWeights&&) = delete;

  // Under the names of Qwen3-MoE, experts of a layer fused; point into this.
  const model::TensorMap& tensors() const { return tensors_; }

  static constexpr int64_t kPeriodBytes = int64_t{8209} * 4096;  // Odd: no two experts alike.

 private:
  SyntheticWeights() = default;

  std::byte* base_ = nullptr;
  size_t mapped_bytes_ = 0;
  std::vector<uint16_t> ones_;
  model::TensorMap tensors_;
};

}  // namespace lynx::cli
