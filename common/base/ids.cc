#include "common/base/ids.h"

#include <sys/random.h>

#include "absl/strings/str_format.h"
#include "common/base/check.h"

namespace lynx {

uint64_t RandomId() {
  // std::random_device may ask the CPU, which takes 20 us in a virtual machine.
  uint64_t id = 0;
  while (id == 0) {
    const ssize_t got = getrandom(&id, sizeof(id), /*flags=*/0);
    LYNX_CHECK_MSG(got == sizeof(id), "getrandom failed");
  }
  return id;
}

std::string HexId(uint64_t id) { return absl::StrFormat("%016x", id); }

}  // namespace lynx
