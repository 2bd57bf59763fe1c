#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace lynx::moe::internal {

// How a score becomes a bin: min(last, floor(alpha * (best - score) / unit)).
struct BinRule {
  double alpha = 1;
  double last = 0;  // At most kLastPackedBin where bins are packed.
  double best = 0;
  double unit = 1;

  // The bin before rounding down: at least 0, a NaN never.
  double Unrounded(float score) const {
    const double gap = best - static_cast<double>(score);
    if (gap == 0) return 0;  // Also where the unit is 0.
    return std::min(alpha * (unit == 1 ? gap : gap / unit), last);
  }
};

// How the voters like an expert, packed into 64 bits: one count for each bin but the last, which
// follows from the others, then an expert's own number, higher for lower ids. So no two are equal.
inline constexpr int32_t kLastPackedBin = 4;
inline constexpr size_t kMaxPackedVoters = 0xFFF;
inline constexpr int kLikingShift = 16;  // Above it are the counts.
inline uint64_t NobodysLiking(size_t expert) { return 0xFFFF - expert; }
inline uint64_t LikingUnit(int32_t bin) {
  return uint64_t{1} << (kLikingShift + 12 * (kLastPackedBin - 1 - bin));
}

// The best of a row's scores, sought among some rows at once.
struct TopRow {
  const float* scores = nullptr;
  int32_t* ids = nullptr;  // [k]: best first, ties to the lower id.
  size_t held = 0;         // How many of k there are: before, given ones; after, found ones too.
  const int32_t* barred = nullptr;  // [k] or null: ids that are not sought.
};

// The loops over rows of experts that plans spend their time in, for one instruction set. All
// bodies give the same bits. `count` is the experts of a row.
struct RowOps {
  // How many scores are above -Inf; -1 where one is NaN or +Inf.
  int32_t (*count_usable)(const float* scores, size_t count);

  // Finds the best of each row's scores above -Inf until it holds `k`. `allowed` is null or
  // [count]: 0 leaves an expert out. No NaN.
  void (*top)(TopRow* rows, size_t row_count, const uint8_t* allowed, size_t count, size_t k);

  // Writes the bin of every score, and adds unit[bin] to each expert's liking.
  void (*bin)(const BinRule& rule, const uint64_t (&unit)[8], const float* scores, size_t count,
              uint8_t* bins, uint64_t* liking);

  // Writes all ids by falling liking. No two are equal.
  void (*order)(const uint64_t* liking, size_t count, int32_t* ids);
};

const RowOps& PortableRowOps();
// Null where this processor cannot run them.
const RowOps* Avx512RowOps();
// The best of them here.
const RowOps& BestRowOps();

}  // namespace lynx::moe::internal
