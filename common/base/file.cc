#include "common/base/file.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/base/ids.h"

namespace lynx {

absl::Status WriteFileAtomically(const std::filesystem::path& path, std::string_view content) {
  const std::filesystem::path temporary = path.string() + "." + HexId(RandomId());
  std::ofstream out(temporary, std::ios::binary);
  out.write(content.data(), static_cast<std::streamsize>(content.size()));
  out.close();
  std::error_code error;
  if (out.good()) std::filesystem::rename(temporary, path, error);
  if (!out.good() || error) {
    const std::string reason = error ? error.message() : strerror(errno);
    std::filesystem::remove(temporary, error);
    return absl::UnavailableError(absl::StrCat("cannot write ", path.string(), ": ", reason));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadFile(const std::filesystem::path& path, size_t max_bytes) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return absl::NotFoundError(absl::StrCat(path.string(), ": no such file"));
  }
  const auto size = std::filesystem::file_size(path, error);
  if (!error && size > max_bytes) {
    return absl::OutOfRangeError(
        absl::StrCat(path.string(), " is ", size, " bytes long, the limit is ", max_bytes));
  }
  std::ifstream in(path, std::ios::binary);
  std::string content(error ? 0 : static_cast<size_t>(size), '\0');
  in.read(content.data(), static_cast<std::streamsize>(content.size()));
  if (error || !in.good() || in.gcount() != static_cast<std::streamsize>(content.size())) {
    return absl::NotFoundError(absl::StrCat(path.string(), ": cannot be read"));
  }
  return content;
}

std::string ReadKernelFile(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace lynx
