#include "tests/support/golden_fixture.h"

#include <cmath>
#include <fstream>
#include <limits>
#include <utility>

#include "common/base/check.h"
#include "nlohmann/json.hpp"

namespace lynx::testing {

std::vector<GoldenPrompt> LoadGoldenFixture(const std::string& base) {
  std::ifstream json_file(base + ".json");
  const nlohmann::json fixture = nlohmann::json::parse(json_file);
  std::ifstream bin_file(base + ".bin", std::ios::binary);
  std::vector<float> values(fixture["values"].get<size_t>());
  bin_file.read(reinterpret_cast<char*>(values.data()),
                static_cast<std::streamsize>(values.size() * sizeof(float)));
  LYNX_CHECK_MSG(bin_file.good(), base + ".bin is shorter than its .json says");
  const auto vocab = fixture["vocab_size"].get<size_t>();
  const auto top = fixture["top"].get<size_t>();
  auto slice = [&](size_t offset, size_t row, size_t width) {
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(offset + row * width);
    return std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(width));
  };
  std::vector<GoldenPrompt> prompts;
  for (const auto& entry : fixture["prompts"]) {
    GoldenPrompt prompt;
    prompt.tokens = entry["tokens"].get<std::vector<TokenId>>();
    prompt.full_positions = entry["full_positions"].get<std::vector<int32_t>>();
    prompt.top_ids = entry["top_ids"].get<std::vector<std::vector<int32_t>>>();
    for (size_t i = 0; i < prompt.full_positions.size(); ++i) {
      prompt.full.push_back(slice(entry["full_offset"].get<size_t>(), i, vocab));
    }
    for (size_t i = 0; i < prompt.tokens.size(); ++i) {
      prompt.top.push_back(slice(entry["top_offset"].get<size_t>(), i, top));
    }
    prompt.largest = slice(entry["largest_offset"].get<size_t>(), 0, prompt.tokens.size());
    prompt.greedy = entry["greedy"].get<std::vector<TokenId>>();
    prompt.greedy_gaps = entry["greedy_gaps"].get<std::vector<double>>();
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

std::string GoldenVariantPath(const std::string& variant) {
  return "tests/golden/variants/" + variant;
}

double LogSumExp(std::span<const float> logits) {
  const double largest = *std::ranges::max_element(logits);
  double sum = 0;
  for (float z : logits) sum += std::exp(z - largest);
  return largest + std::log(sum);
}

double Divergence(std::span<const float> want, std::span<const float> got) {
  const double want_norm = LogSumExp(want);
  const double got_norm = LogSumExp(got);
  double sum = 0;
  for (size_t v = 0; v < want.size(); ++v) {
    const double log_p = want[v] - want_norm;
    sum += std::exp(log_p) * (log_p - (got[v] - got_norm));
  }
  return std::isnan(sum) ? std::numeric_limits<double>::infinity() : sum;
}

double RelativeDifference(std::span<const float> want, std::span<const float> got) {
  double largest = 0;
  double worst = 0;
  for (size_t v = 0; v < want.size(); ++v) {
    const double difference = std::abs(double{got[v]} - want[v]);
    if (std::isnan(difference)) return std::numeric_limits<double>::infinity();
    worst = std::max(worst, difference);
    largest = std::max(largest, std::abs(double{want[v]}));
  }
  return worst / largest;
}

}  // namespace lynx::testing
