#include "common/base/ids.h"

#include <random>

#include "absl/strings/str_format.h"

namespace lynx {

uint64_t RandomId() {
  std::random_device entropy;
  uint64_t id = 0;
  while (id == 0) id = (static_cast<uint64_t>(entropy()) << 32) | entropy();
  return id;
}

std::string HexId(uint64_t id) { return absl::StrFormat("%016x", id); }

}  // namespace lynx
