#pragma once

#include <cstddef>
#include <cstdint>

namespace lynx::moe::internal {

// Inserts `id` into the `held` best so far, best first, of which at most `capacity` are kept. What
// came first stays first among equals. Returns how many are held then.
template <typename Better>
size_t InsertBest(int32_t* best, size_t held, size_t capacity, int32_t id, const Better& better) {
  if (held == capacity) {
    if (capacity == 0 || !better(id, best[held - 1])) return held;
  } else {
    ++held;
  }
  size_t place = held - 1;
  for (; place > 0 && better(id, best[place - 1]); --place) best[place] = best[place - 1];
  best[place] = id;
  return held;
}

}  // namespace lynx::moe::internal
