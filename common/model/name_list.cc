#include "common/model/name_list.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/utf8.h"

namespace lynx::model {

std::string Shortened(std::string_view text) {
  constexpr size_t kMaxBytes = 200;
  if (text.size() <= kMaxBytes) return ReplaceInvalidUtf8(text);
  return ReplaceInvalidUtf8(text.substr(0, kMaxBytes)) + "...";
}

std::string NameList(const std::vector<std::string>& names) {
  constexpr size_t kMaxNames = 10;
  const size_t shown = std::min(names.size(), kMaxNames);
  const auto end = names.begin() + static_cast<std::ptrdiff_t>(shown);
  std::string text =
      absl::StrJoin(names.begin(), end, ", ",
                    [](std::string* to, const std::string& name) { to->append(Shortened(name)); });
  if (shown < names.size()) absl::StrAppend(&text, " and ", names.size() - shown, " more");
  return text;
}

}  // namespace lynx::model
