#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/attention/latent_attention_backends.h"
#include "kernels/attention/split_passes.h"

namespace lynx::kernels {

// Memory that attention works in, made once, for any number of rows and any context: the splits of
// long sequences that several threads share leave their sums there until they are merged. Work that
// needs more takes turns, so its size shows in time alone. Untouched where no sequence is cut. One
// call at a time.
class AttentionWorkspace {
 public:
  // So many bytes keep that many threads busy.
  static constexpr int64_t BytesFor(int32_t threads) { return threads * kBytesPerThread; }
  // bad_alloc where there is no memory. At least kLeastBytes are taken.
  explicit AttentionWorkspace(int64_t bytes);

  static constexpr int64_t kLeastBytes =
      internal::SplitPasses::kLeastCapacity * static_cast<int64_t>(sizeof(LatentSums));

  std::vector<AttentionTile> tiles;
  std::vector<internal::SplitUnit> units;
  internal::SplitPasses::Lists lists;
  // Places of either kind.
  template <typename Sums>
  Sums* sums() const {
    return reinterpret_cast<Sums*>(lines_.get());
  }
  template <typename Sums>
  int64_t places() const {
    return bytes_ / static_cast<int64_t>(sizeof(Sums));
  }

 private:
  static constexpr int64_t kBytesPerThread = int64_t{4} << 20;
  struct alignas(64) Line {
    std::byte bytes[64];
  };

  const int64_t bytes_;
  // Not a vector, which would write it all first.
  const std::unique_ptr<Line[]> lines_;
};

}  // namespace lynx::kernels
