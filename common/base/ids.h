#pragma once

#include <cstdint>
#include <string>

namespace lynx {

// Random 64-bit id of one start of a process; never 0. Part of every address, so a restarted node
// is never taken for its former self.
using Incarnation = uint64_t;

// A fresh random non-zero 64-bit id from the operating system's entropy source. Thread-safe.
uint64_t RandomId();

// 16 lower-case hex digits.
std::string HexId(uint64_t id);

}  // namespace lynx
