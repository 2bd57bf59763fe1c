#include "tests/support/temp_dir.h"

#include <fstream>

#include "common/base/check.h"
#include "common/base/ids.h"

namespace lynx::testing {

TempDir::TempDir()
    : path_(std::filesystem::temp_directory_path() / ("lynx-test-" + HexId(RandomId()))) {
  std::filesystem::create_directories(path_);
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::filesystem::path TempDir::Write(const std::string& name, std::string_view content) const {
  const std::filesystem::path file = path_ / name;
  std::filesystem::create_directories(file.parent_path());
  std::ofstream out(file, std::ios::binary);
  out.write(content.data(), static_cast<std::streamsize>(content.size()));
  LYNX_CHECK(out.good());
  return file;
}

}  // namespace lynx::testing
