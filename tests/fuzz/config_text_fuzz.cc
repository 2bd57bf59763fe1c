// Any bytes as a config file and as a file of API keys: what is read reads the same once it is
// written again, what is refused says where, and no key's hash is told.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/config/config_file.h"
#include "services/router/front/api_keys.h"

namespace {

using lynx::config::ConfigEntry;
using lynx::config::ParseConfigFile;
using lynx::config::QuoteConfigValue;

constexpr char kName[] = "some-file";

void CheckError(const absl::Status& status) {
  LYNX_CHECK(absl::IsInvalidArgument(status));
  LYNX_CHECK(absl::StrContains(status.message(), kName));
}

void CheckConfig(std::string_view text) {
  const auto entries = ParseConfigFile(text, kName);
  if (!entries.ok()) return CheckError(entries.status());
  std::string again;
  for (const ConfigEntry& entry : *entries) {
    std::vector<std::string> values;
    for (const std::string& value : entry.values) values.push_back(QuoteConfigValue(value));
    absl::StrAppend(&again, entry.key, " = ");
    if (values.size() == 1) {
      absl::StrAppend(&again, values.front(), "\n");
    } else {
      absl::StrAppend(&again, "[", absl::StrJoin(values, ", "), "]\n");
    }
  }
  const auto reread = ParseConfigFile(again, kName);
  LYNX_CHECK_MSG(reread.ok(), std::string(reread.status().message()));
  LYNX_CHECK(reread->size() == entries->size());
  for (size_t i = 0; i < entries->size(); ++i) {
    LYNX_CHECK((*reread)[i].key == (*entries)[i].key);
    LYNX_CHECK((*reread)[i].values == (*entries)[i].values);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  CheckConfig(text);
  const auto keys = lynx::router::ApiKeys::Parse(text, kName);
  if (!keys.ok()) CheckError(keys.status());
  if (keys.ok()) LYNX_CHECK(keys->size() > 0 && keys->limits().size() <= keys->size());
  return 0;
}
