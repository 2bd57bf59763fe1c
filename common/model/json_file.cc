#include "common/model/json_file.h"

#include <optional>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/json_shape.h"
#include "common/base/regular_file.h"
#include "common/base/status_macros.h"
#include "common/model/name_list.h"

namespace lynx::model {

using nlohmann::json;

namespace {

// Finds a key that occurs twice in an object. In a pass of its own: to watch json::parse() costs
// time quadratic in the members of an object.
class RepeatedKeys : public nlohmann::json_sax<json> {
 public:
  const std::optional<std::string>& first() const { return first_; }

  bool start_object(size_t) override {
    open_.emplace_back();
    return true;
  }
  bool end_object() override {
    open_.pop_back();
    return true;
  }
  bool key(std::string& key) override {
    if (open_.back().insert(key).second) return true;
    first_ = key;
    return false;
  }
  // What is malformed, json::parse() reports.
  bool parse_error(size_t, const std::string&, const json::exception&) override { return false; }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(int64_t) override { return true; }
  bool number_unsigned(uint64_t) override { return true; }
  bool number_float(double, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(json::binary_t&) override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }

 private:
  std::vector<std::set<std::string>> open_;  // Keys of the objects around the current value.
  std::optional<std::string> first_;
};

}  // namespace

absl::StatusOr<json> ParseJson(std::string_view text, std::string_view name) {
  const std::string prefix = absl::StrCat(std::string(name), ": ");
  // The largest header of a published model has about 10^5 tensors of 6 elements.
  if (absl::Status shape = CheckJsonShape(text, kMaxJsonDepth, 10'000'000); !shape.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(prefix, shape.message()));
  }
  // nlohmann/json takes it for the end.
  if (text.find('\0') != std::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat(prefix, "has a zero byte"));
  }
  RepeatedKeys keys;
  json document;
  try {
    json::sax_parse(text.begin(), text.end(), &keys);
    document = json::parse(text.begin(), text.end());
  } catch (const json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(prefix, Shortened(error.what())));
  }
  if (keys.first().has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(prefix, "key '", Shortened(*keys.first()), "' occurs twice"));
  }
  return document;
}

absl::StatusOr<json> ReadJsonFile(const std::filesystem::path& path, int64_t max_bytes) {
  LYNX_ASSIGN_OR_RETURN(const RegularFile file, RegularFile::Open(path));
  if (file.size() > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path.string(), " is larger than ", max_bytes, " bytes"));
  }
  const absl::StatusOr<std::string> text = file.ReadAll();
  if (!text.ok()) return absl::InvalidArgumentError(absl::StrCat("cannot read ", path.string()));
  return ParseJson(*text, path.string());
}

}  // namespace lynx::model
