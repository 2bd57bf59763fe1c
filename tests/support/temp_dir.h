#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace lynx::testing {

// A fresh directory, removed with its contents at the end of the scope.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // Writes `content` to path()/name, making parent folders; returns the full path.
  std::filesystem::path Write(const std::string& name, std::string_view content) const;

 private:
  std::filesystem::path path_;
};

}  // namespace lynx::testing
