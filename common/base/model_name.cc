#include "common/base/model_name.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/base/utf8.h"

namespace lynx {

std::string FolderName(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).lexically_normal();
  return (folder.has_filename() ? folder : folder.parent_path()).filename().string();
}

absl::Status CheckModelName(std::string_view name) {
  if (IsValidUtf8(name)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the model's name, '", ReplaceInvalidUtf8(name),
                                                 "', is not UTF-8; give --served-model-name"));
}

}  // namespace lynx
