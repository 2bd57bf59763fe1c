#include "services/cli/bench/kv_noise.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/core/float_convert.h"

namespace lynx::cli {
namespace {

constexpr size_t kValues = 1 << 20;

}  // namespace

void FillWithNoise(std::span<const kv::BlockId> blocks, uint32_t seed, kv::KvArena& kv) {
  std::mt19937 rng(seed);
  std::uniform_real_distribution<float> value(-1.7f, 1.7f);  // Of variance 1.
  const size_t element = SizeOf(kv.layout().dtype);
  std::vector<std::byte> noise(kValues * element);
  for (size_t i = 0; i < kValues; ++i) {
    const float x = value(rng);
    if (element == sizeof(float)) {
      std::memcpy(noise.data() + i * element, &x, element);
    } else {
      const uint16_t bits = kernels::F32ToBf16(x);
      std::memcpy(noise.data() + i * element, &bits, element);
    }
  }
  for (int32_t layer = 0; layer < kv.layout().layers; ++layer) {
    if (kv.layout().groups.group_of(layer) != 0) continue;  // It shares its bytes with one that is.
    for (kv::BlockId block : blocks) {
      std::span<std::byte> to = kv.BlockLayerSpan(layer, block);
      while (!to.empty()) {
        const size_t start = rng() % (kValues / 2) * element;
        const size_t bytes = std::min(to.size(), noise.size() - start);
        std::memcpy(to.data(), noise.data() + start, bytes);
        to = to.subspan(bytes);
      }
    }
  }
}

}  // namespace lynx::cli
