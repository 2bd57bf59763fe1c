#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lynx {

// The first key that occurs twice in one object of `json`, which a parser has accepted; none where
// all are unique. JSON allows it, and parsers keep either: whoever reads the text another way would
// get another document. Linear; recurses never.
std::optional<std::string> RepeatedJsonKey(std::string_view json);

}  // namespace lynx
