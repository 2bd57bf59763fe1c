#include "common/model/name_list.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lynx::model {

std::string NameList(const std::vector<std::string>& names) {
  constexpr size_t kMaxNames = 10;
  const size_t shown = std::min(names.size(), kMaxNames);
  const auto end = names.begin() + static_cast<std::ptrdiff_t>(shown);
  std::string text = absl::StrJoin(names.begin(), end, ", ");
  if (shown < names.size()) absl::StrAppend(&text, " and ", names.size() - shown, " more");
  return text;
}

}  // namespace lynx::model
