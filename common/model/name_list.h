#pragma once

#include <string>
#include <vector>

namespace lynx::model {

// For a message: the first ten names, and how many more there are.
std::string NameList(const std::vector<std::string>& names);

}  // namespace lynx::model
