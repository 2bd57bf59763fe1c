#include "kernels/sampling/logits.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

namespace lynx::kernels {
namespace {

constexpr size_t kLanes = 16;  // Independent chains, so that the loops vectorise as written.
constexpr size_t kHeapLimit = 512;

float Exp(float x) {
  const float clamped = x < -87.0f ? -87.0f : x;
  // Rounded to nearest: the conversion truncates towards zero.
  const int n = static_cast<int>(clamped * 1.44269504f - 0.5f);
  const float whole = static_cast<float>(n);
  const float r = (clamped - whole * 0.693359375f) - whole * -2.12194440e-4f;
  // Taylor series; the rest is under 6e-9 for |r| <= ln(2) / 2.
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const float scale = std::bit_cast<float>((n + 127) << 23);
  return x < -87.0f ? 0.0f : p * scale;
}

double SumLanes(const std::array<double, kLanes>& lanes) {
  double sum = 0;
  for (double lane : lanes) sum += lane;
  return sum;
}

}  // namespace

float ExpNonPositive(float x) { return Exp(x); }

LogitsSummary SummarizeLogits(std::span<const float> row) {
  const float* x = row.data();
  const size_t size = row.size();
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  LogitsSummary summary{.valid = true, .max = kLowest};
  size_t best_block = 0;
  for (size_t begin = 0; begin < size; begin += kWeightBlock) {
    const size_t end = std::min(begin + kWeightBlock, size);
    std::array<float, kLanes> max;
    max.fill(kLowest);
    std::array<uint32_t, kLanes> bad{};
    size_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (size_t lane = 0; lane < kLanes; ++lane) {
        const float value = x[i + lane];
        max[lane] = value > max[lane] ? value : max[lane];
        // All ones in the exponent and not -Inf.
        bad[lane] |= !(value <= std::numeric_limits<float>::max());
      }
    }
    for (; i < end; ++i) {
      max[0] = x[i] > max[0] ? x[i] : max[0];
      bad[0] |= !(x[i] <= std::numeric_limits<float>::max());
    }
    float block_max = kLowest;
    for (size_t lane = 0; lane < kLanes; ++lane) {
      block_max = std::max(block_max, max[lane]);
      if (bad[lane] != 0) summary.valid = false;
    }
    if (block_max > summary.max) {
      summary.max = block_max;
      best_block = begin;
    }
  }
  if (summary.max == kLowest) summary.valid = false;
  if (!summary.valid) return summary;
  size_t argmax = best_block;
  while (x[argmax] != summary.max) ++argmax;
  summary.argmax = static_cast<TokenId>(argmax);
  return summary;
}

double SumExp(std::span<const float> row, float max) {
  const float* x = row.data();
  std::array<double, kLanes> sum{};
  size_t i = 0;
  for (; i + kLanes <= row.size(); i += kLanes) {
    std::array<float, kLanes> term;
    for (size_t lane = 0; lane < kLanes; ++lane) term[lane] = Exp(x[i + lane] - max);
    for (size_t lane = 0; lane < kLanes; ++lane) sum[lane] += static_cast<double>(term[lane]);
  }
  for (; i < row.size(); ++i) sum[0] += static_cast<double>(Exp(x[i] - max));
  return SumLanes(sum);
}

void ExpWeights(std::span<const float> row, float max, float temperature, float min_weight,
                std::span<float> weights, std::span<double> partial) {
  const float* x = row.data();
  float* w = weights.data();
  for (size_t block = 0, begin = 0; begin < row.size(); ++block, begin += kWeightBlock) {
    const size_t end = std::min(begin + kWeightBlock, row.size());
    for (size_t i = begin; i < end; ++i) {
      const float weight = Exp((x[i] - max) / temperature);
      w[i] = weight < min_weight ? 0.0f : weight;
    }
    std::array<double, kLanes> sum{};
    size_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (size_t lane = 0; lane < kLanes; ++lane) sum[lane] += static_cast<double>(w[i + lane]);
    }
    for (; i < end; ++i) sum[0] += static_cast<double>(w[i]);
    partial[block] = SumLanes(sum);
  }
}

void TopK(std::span<const float> row, size_t k, std::vector<Candidate>& out) {
  out.clear();
  k = std::min(k, row.size());
  if (k == 0) return;
  if (k > kHeapLimit) {
    out.resize(row.size());
    for (size_t i = 0; i < row.size(); ++i) out[i] = {row[i], static_cast<TokenId>(i)};
    if (k < out.size()) {
      std::nth_element(out.begin(), out.begin() + static_cast<ptrdiff_t>(k), out.end(), Better);
      out.resize(k);
    }
    std::sort(out.begin(), out.end(), Better);
    return;
  }
  // A heap whose front is the worst kept. A later entry has a higher id, so it must be larger.
  for (size_t i = 0; i < row.size(); ++i) {
    const Candidate candidate{row[i], static_cast<TokenId>(i)};
    if (out.size() < k) {
      out.push_back(candidate);
      std::push_heap(out.begin(), out.end(), Better);
    } else if (candidate.value > out.front().value) {
      std::pop_heap(out.begin(), out.end(), Better);
      out.back() = candidate;
      std::push_heap(out.begin(), out.end(), Better);
    }
  }
  std::sort_heap(out.begin(), out.end(), Better);
}

}  // namespace lynx::kernels
