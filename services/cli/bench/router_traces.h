#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

namespace lynx::cli {

// Router logits that a model really had in decode steps: float32 [steps, layers, sequences,
// experts]. What benches route by, since the number of distinct experts of a batch decides what a
// step costs, and random routers spread rows far more evenly than trained ones do.
struct RouterTraces {
  int64_t steps = 0;
  int64_t layers = 0;
  int64_t sequences = 0;
  int64_t experts = 0;
  std::vector<float> logits = {};

  std::span<const float> Row(int64_t step, int64_t layer, int64_t sequence) const;
};

// Reads FILE.bin, with the shape in FILE.json beside it.
//   NotFound         one of them cannot be read.
//   InvalidArgument  they disagree, the shape is none, or a logit is NaN; names the place.
absl::StatusOr<RouterTraces> ReadRouterTraces(const std::filesystem::path& file);

// Number `index` of the layers' logits: [rows, experts] into `to`. Each row is another sequence,
// and beyond the traced sequences, of another step. index counts layers first: index i is traced
// layer i mod layers, i / layers steps later, so a deep model replays the traced layers at shifted
// steps. More experts than were traced come from the same token's further layers, joined and cut;
// of fewer, the first are taken.
void ComposeRouterLogits(const RouterTraces& traces, int64_t experts, int64_t rows, int64_t index,
                         std::span<float> to);

}  // namespace lynx::cli
