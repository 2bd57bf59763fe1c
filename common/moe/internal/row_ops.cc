#include "common/moe/internal/row_ops.h"

#include <algorithm>
#include <limits>
#include <span>

#include "common/moe/internal/insert_best.h"

namespace lynx::moe::internal {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

int32_t CountUsable(const float* scores, size_t count) {
  int32_t usable = 0;
  bool wrong = false;
  for (size_t e = 0; e < count; ++e) {
    wrong |= !(scores[e] < kInf);
    usable += scores[e] > -kInf ? 1 : 0;
  }
  return wrong ? -1 : usable;
}

void Top(TopRow* rows, size_t row_count, const uint8_t* allowed, size_t count, size_t k) {
  for (TopRow* row = rows; row < rows + row_count; ++row) {
    const float* scores = row->scores;
    const std::span barred(row->barred, row->barred != nullptr ? k : 0);
    int32_t* found = row->ids + row->held;
    const size_t wanted = k - row->held;
    size_t held = 0;
    float last = -kInf;  // What the next one must beat, once as many are held.
    for (size_t e = 0; e < count; ++e) {
      if (!(scores[e] > last) && (held == wanted || scores[e] == -kInf)) continue;
      if (allowed != nullptr && allowed[e] == 0) continue;
      if (std::ranges::count(barred, static_cast<int32_t>(e)) > 0) continue;
      held = InsertBest(found, held, wanted, static_cast<int32_t>(e),
                        [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
      if (held == wanted && held > 0) last = scores[found[held - 1]];
    }
    row->held += held;
  }
}

void Bin(const BinRule& rule, const uint64_t (&unit)[8], const float* scores, size_t count,
         uint8_t* bins, uint64_t* liking) {
  for (size_t e = 0; e < count; ++e) {
    bins[e] = static_cast<uint8_t>(rule.Unrounded(scores[e]));
    liking[e] += unit[bins[e]];
  }
}

void Order(const uint64_t* liking, size_t count, int32_t* ids) {
  for (size_t e = 0; e < count; ++e) ids[e] = static_cast<int32_t>(e);
  std::sort(ids, ids + count, [&](int32_t a, int32_t b) { return liking[a] > liking[b]; });
}

}  // namespace

const RowOps& PortableRowOps() {
  static constexpr RowOps kOps = {CountUsable, Top, Bin, Order};
  return kOps;
}

const RowOps& BestRowOps() {
  static const RowOps& best = Avx512RowOps() != nullptr ? *Avx512RowOps() : PortableRowOps();
  return best;
}

}  // namespace lynx::moe::internal
