#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lynx::model {

// For a message: the start of a text that may be of any length and no UTF-8.
std::string Shortened(std::string_view text);

// For a message: the first ten names, shortened, and how many more there are.
std::string NameList(const std::vector<std::string>& names);

}  // namespace lynx::model
