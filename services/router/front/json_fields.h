#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"

// Reading fields of request bodies. Pure functions; thread-safe.
namespace lynx::router {

using Json = nlohmann::json;

// Null when absent or null.
const Json* Find(const Json& object, const char* name);

// InvalidArgument: `param` is not what is wanted.
absl::Status TypeError(std::string_view param, std::string_view wanted, const Json& got);

// A part of a JSON text as it was written. `Json` sorts the members of objects; what is handed on
// to others keeps their order so.
struct RawMember {
  std::string name;
  std::string_view value;
};

// Of a text that a JSON parser accepted as an object or an array. One pass over the text.
std::vector<RawMember> RawMembers(std::string_view object);
std::vector<std::string_view> RawElements(std::string_view array);
// The last member of that name; empty when there is none.
std::string_view RawValue(std::string_view object, std::string_view name);

}  // namespace lynx::router
