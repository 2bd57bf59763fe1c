#include "common/model/model_config.h"

#include "absl/strings/str_cat.h"

namespace lynx::model {
namespace {

using nlohmann::json;

constexpr double kLeastNumber = 1e-20;
constexpr double kMostNumber = 1e20;

std::string Shown(const json* value) {
  if (value == nullptr) return "absent";
  // In ASCII, so that a cut leaves whole characters.
  std::string text = value->dump(/*indent=*/-1, /*indent_char=*/' ', /*ensure_ascii=*/true);
  if (text.size() > 100) text = absl::StrCat(text.substr(0, 100), "...");
  return text;
}

}  // namespace

const json* ModelConfig::Find(const char* key) const {
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

const char* ModelConfig::FirstOf(std::initializer_list<const char*> keys) const {
  const char* last = nullptr;
  for (const char* key : keys) {
    last = key;
    if (Find(key) != nullptr) return key;
  }
  return last;
}

absl::Status ModelConfig::Wrong(const char* key, std::string_view wanted) const {
  return absl::InvalidArgumentError(absl::StrCat(
      file_, ": key '", key, "' must be ", std::string(wanted), "; it is ", Shown(Find(key))));
}

absl::Status ModelConfig::Unserved(const char* key, std::string_view why) const {
  return absl::UnimplementedError(
      absl::StrCat(file_, ": '", key, "' is ", Shown(Find(key)), ": ", std::string(why)));
}

absl::StatusOr<int32_t> ModelConfig::Size(const char* key, int32_t most) const {
  const json* value = Find(key);
  if (value == nullptr || !value->is_number_integer() || *value < 1 || *value > most) {
    return Wrong(key, absl::StrCat("an integer from 1 to ", most));
  }
  return value->get<int32_t>();
}

absl::StatusOr<int32_t> ModelConfig::SizeOr(const char* key, int32_t absent) const {
  if (Find(key) == nullptr) return absent;
  return Size(key);
}

absl::StatusOr<int32_t> ModelConfig::CountOr(const char* key, int32_t absent) const {
  const json* value = Find(key);
  if (value == nullptr) return absent;
  if (value->is_number_integer() && *value == 0) return 0;
  return Size(key);
}

absl::StatusOr<double> ModelConfig::Positive(const char* key, std::optional<double> absent) const {
  const json* value = Find(key);
  if (value == nullptr && absent.has_value()) return *absent;
  const double number = value != nullptr && value->is_number() ? value->get<double>() : 0;
  if (number >= kLeastNumber && number <= kMostNumber) return number;
  return Wrong(key, absl::StrCat("a number from ", kLeastNumber, " to ", kMostNumber));
}

absl::StatusOr<double> ModelConfig::NumberOr(const char* key, double absent) const {
  const json* value = Find(key);
  if (value == nullptr) return absent;
  if (value->is_number() && *value == 0) return 0.0;
  return Positive(key, std::nullopt);
}

absl::StatusOr<bool> ModelConfig::Flag(const char* key, bool absent) const {
  const json* value = Find(key);
  if (value == nullptr) return absent;
  if (!value->is_boolean()) return Wrong(key, "true or false");
  return value->get<bool>();
}

absl::StatusOr<std::string> ModelConfig::Text(const char* key,
                                              std::optional<std::string> absent) const {
  const json* value = Find(key);
  if (value == nullptr && absent.has_value()) return *absent;
  if (value == nullptr || !value->is_string()) return Wrong(key, "a string");
  return value->get<std::string>();
}

absl::Status ModelConfig::AddIds(const char* key, int32_t vocab_size,
                                 std::set<int32_t>& ids) const {
  const json* value = Find(key);
  if (value == nullptr) return absl::OkStatus();
  for (const json& id : value->is_array() ? *value : json::array({*value})) {
    if (!id.is_number_integer() || id < 0 || id >= vocab_size) {
      return Wrong(key, absl::StrCat("a token id below vocab_size, ", vocab_size, ", or a list"));
    }
    ids.insert(id.get<int32_t>());
  }
  return absl::OkStatus();
}

}  // namespace lynx::model
