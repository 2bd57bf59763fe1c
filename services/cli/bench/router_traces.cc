#include "services/cli/bench/router_traces.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace lynx::cli {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<RouterTraces> ReadShape(const fs::path& description) {
  std::ifstream json(description);
  if (!json) {
    return absl::NotFoundError(absl::StrCat("--traces: cannot read ", description.string(),
                                            ", recorded router logits of this repository"));
  }
  const nlohmann::json parsed = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) {
    return absl::InvalidArgumentError(absl::StrCat(description.string(), ": is not valid JSON"));
  }
  std::vector<int64_t> shape;
  if (parsed.is_object() && parsed.contains("shape") && parsed["shape"].is_array()) {
    for (const auto& size : parsed["shape"]) {
      shape.push_back(size.is_number_unsigned() && size < (1 << 20) ? size.get<int64_t>() : 0);
    }
  }
  if (shape.size() != 4 || std::find(shape.begin(), shape.end(), 0) != shape.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        description.string(), ": shape must be four sizes: steps, layers, sequences, experts"));
  }
  return RouterTraces{
      .steps = shape[0], .layers = shape[1], .sequences = shape[2], .experts = shape[3]};
}

}  // namespace

std::span<const float> RouterTraces::Row(int64_t step, int64_t layer, int64_t sequence) const {
  const int64_t row = (step * layers + layer) * sequences + sequence;
  return std::span(logits).subspan(static_cast<size_t>(row * experts),
                                   static_cast<size_t>(experts));
}

absl::StatusOr<RouterTraces> ReadRouterTraces(const fs::path& file) {
  fs::path description = file;
  description.replace_extension(".json");
  LYNX_ASSIGN_OR_RETURN(RouterTraces traces, ReadShape(description));
  std::error_code error;
  const auto wanted = static_cast<double>(traces.steps) * static_cast<double>(traces.layers) *
                      static_cast<double>(traces.sequences) * static_cast<double>(traces.experts) *
                      sizeof(float);
  const auto size = fs::file_size(file, error);
  if (error || static_cast<double>(size) != wanted) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s has %s bytes, its description says %.0f", file.string(),
                        error ? error.message() : absl::StrCat(size), wanted));
  }
  traces.logits.resize(size / sizeof(float));
  std::ifstream data(file, std::ios::binary);
  if (!data.read(reinterpret_cast<char*>(traces.logits.data()),
                 static_cast<std::streamsize>(size))) {
    return absl::NotFoundError(absl::StrCat("cannot read ", file.string()));
  }
  // A row of them is no router's output, and would be planned as exact.
  const auto nan = std::find_if(traces.logits.begin(), traces.logits.end(),
                                [](float logit) { return std::isnan(logit); });
  if (nan != traces.logits.end()) {
    const int64_t row = (nan - traces.logits.begin()) / traces.experts;
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: step %d, layer %d, sequence %d has a logit that is not a number",
                        file.string(), row / traces.sequences / traces.layers,
                        row / traces.sequences % traces.layers, row % traces.sequences));
  }
  return traces;
}

void ComposeRouterLogits(const RouterTraces& traces, int64_t experts, int64_t rows, int64_t index,
                         std::span<float> to) {
  LYNX_CHECK(static_cast<int64_t>(to.size()) == rows * experts);
  auto at = to.begin();
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t step = (index / traces.layers + row / traces.sequences) % traces.steps;
    const auto end = at + static_cast<ptrdiff_t>(experts);
    for (int64_t layer = index; at < end; ++layer) {
      const auto part = traces.Row(step, layer % traces.layers, row % traces.sequences);
      const auto count = std::min(static_cast<ptrdiff_t>(part.size()), end - at);
      at = std::copy_n(part.begin(), count, at);
    }
  }
}

}  // namespace lynx::cli
