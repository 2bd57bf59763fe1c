#include "common/base/huge_buffer.h"

#include <sys/mman.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lynx {

absl::StatusOr<HugeBuffer> HugeBuffer::Create(size_t bytes, std::string_view purpose) {
  auto failed = [&](std::string_view why) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot map ", bytes, " bytes for ",
                                                     std::string(purpose), ": ", std::string(why)));
  };
  if (bytes > std::numeric_limits<size_t>::max() / 2) return failed("more than can be addressed");
  if (bytes == 0) return HugeBuffer();
  const size_t inner = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  // Room to align, and at least a page on either side that stays inaccessible: it stops whoever
  // runs over the end, and keeps the kernel from merging the mapping with a neighbour.
  const size_t outer = inner + 2 * kAlignment;
  void* mapping =
      mmap(nullptr, outer, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return failed(strerror(errno));
  const auto begin = reinterpret_cast<uintptr_t>(mapping);
  auto* data = reinterpret_cast<std::byte*>((begin / kAlignment + 1) * kAlignment);
  if (mmap(data, inner, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
      MAP_FAILED) {
    const int error = errno;
    munmap(mapping, outer);
    return failed(strerror(error));
  }
  madvise(data, inner, MADV_HUGEPAGE);  // A hint; ordinary pages work too.
  HugeBuffer buffer;
  buffer.data_ = data;
  buffer.size_ = bytes;
  buffer.mapping_ = mapping;
  buffer.mapping_bytes_ = outer;
  return buffer;
}

void HugeBuffer::Swap(HugeBuffer& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapping_bytes_, other.mapping_bytes_);
}

HugeBuffer::~HugeBuffer() {
  if (mapping_ != nullptr) munmap(mapping_, mapping_bytes_);
}

int64_t HugeBuffer::HugePageBytes() const {
  std::ifstream smaps("/proc/self/smaps");
  const auto begin = reinterpret_cast<uintptr_t>(data_);
  std::string line;
  bool ours = false;
  while (std::getline(smaps, line)) {
    uintptr_t first = 0;
    uintptr_t last = 0;
    int64_t kib = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " ", &first, &last) == 2) {
      ours = first == begin;
    } else if (ours && std::sscanf(line.c_str(), "AnonHugePages: %" SCNd64 " kB", &kib) == 1) {
      return kib * 1024;
    }
  }
  return 0;
}

}  // namespace lynx
