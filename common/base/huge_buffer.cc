#include "common/base/huge_buffer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/ids.h"

namespace lynx {

namespace {

size_t RoundUp(size_t bytes) {
  return (bytes + HugeBuffer::kAlignment - 1) / HugeBuffer::kAlignment * HugeBuffer::kAlignment;
}

// What /proc calls the file of shared memory.
std::string LinkOf(const std::string& name) { return absl::StrCat("/memfd:", name, " (deleted)"); }

}  // namespace

absl::StatusOr<HugeBuffer> HugeBuffer::Create(size_t bytes, std::string_view purpose) {
  return Map(bytes, -1, purpose);
}

absl::StatusOr<HugeBuffer> HugeBuffer::CreateShared(size_t bytes, std::string_view purpose) {
  // So that another file is never taken for it.
  const std::string name = absl::StrCat("lynx-", HexId(RandomId()));
  const int file = memfd_create(name.c_str(), MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(RoundUp(bytes))) != 0) {
    const std::string why = strerror(errno);
    if (file >= 0) close(file);
    return absl::ResourceExhaustedError(absl::StrCat(
        "cannot create ", bytes, " bytes of shared memory for ", std::string(purpose), ": ", why));
  }
  absl::StatusOr<HugeBuffer> buffer = Map(bytes, file, purpose);
  if (!buffer.ok()) {
    close(file);
    return buffer;
  }
  buffer->file_ = file;
  buffer->handle_ = absl::StrCat("/proc/", getpid(), "/fd/", file, " ", name);
  return buffer;
}

absl::StatusOr<HugeBuffer> HugeBuffer::Attach(const std::string& handle, size_t bytes,
                                              std::string_view purpose) {
  const auto failed = [&](const std::string& why) {
    return absl::NotFoundError(absl::StrCat("no shared memory ", handle, " for ",
                                            std::string(purpose), " on this host: ", why));
  };
  const size_t space = handle.find(' ');
  const std::string path = handle.substr(0, space);
  if (space == std::string::npos || !path.starts_with("/proc/")) return failed("not a handle");
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return failed(strerror(errno));
  const absl::Cleanup closed = [&] { close(file); };
  std::error_code error;
  const std::string link =
      std::filesystem::read_symlink(absl::StrCat("/proc/self/fd/", file), error).string();
  if (error || link != LinkOf(handle.substr(space + 1))) return failed("it is something else");
  struct stat facts {};
  if (fstat(file, &facts) != 0) return failed(strerror(errno));
  if (facts.st_size != static_cast<off_t>(RoundUp(bytes))) {
    return failed(absl::StrCat("it has ", facts.st_size, " bytes, ", bytes, " are wanted"));
  }
  return Map(bytes, file, purpose);
}

absl::StatusOr<HugeBuffer> HugeBuffer::Map(size_t bytes, int file, std::string_view purpose) {
  auto failed = [&](std::string_view why) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot map ", bytes, " bytes for ",
                                                     std::string(purpose), ": ", std::string(why)));
  };
  if (bytes > std::numeric_limits<size_t>::max() / 2) return failed("more than can be addressed");
  if (bytes == 0) return HugeBuffer();
  const size_t inner = RoundUp(bytes);
  // Room to align, and at least a page on either side that stays inaccessible: it stops whoever
  // runs over the end, and keeps the kernel from merging the mapping with a neighbour.
  const size_t outer = inner + 2 * kAlignment;
  void* mapping =
      mmap(nullptr, outer, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return failed(strerror(errno));
  const auto begin = reinterpret_cast<uintptr_t>(mapping);
  auto* data = reinterpret_cast<std::byte*>((begin / kAlignment + 1) * kAlignment);
  const int kind = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  if (mmap(data, inner, PROT_READ | PROT_WRITE, kind | MAP_FIXED, file, 0) == MAP_FAILED) {
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
  std::swap(file_, other.file_);
  std::swap(handle_, other.handle_);
}

HugeBuffer::~HugeBuffer() {
  if (mapping_ != nullptr) munmap(mapping_, mapping_bytes_);
  if (file_ >= 0) close(file_);
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
