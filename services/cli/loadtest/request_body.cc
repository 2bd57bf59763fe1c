#include "services/cli/loadtest/request_body.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/json_shape.h"
#include "common/base/status_macros.h"

namespace lynx::loadtest {
namespace {

using Json = nlohmann::ordered_json;

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

absl::StatusOr<RequestBody> RequestBody::Create(const Options& options) {
  RequestBody body(options);
  body.start_ =
      absl::StrCat(R"({"model":)", Dump(options.model),
                   options.endpoint == Endpoint::kChat ? R"(,"messages":)" : R"(,"prompt":)");
  if (options.extra.empty()) return body;
  LYNX_RETURN_IF_ERROR(CheckJsonShape(options.extra));
  const Json extra = Json::parse(options.extra, nullptr, /*allow_exceptions=*/false);
  if (!extra.is_object()) return absl::InvalidArgumentError("not a JSON object");
  for (const auto& [name, value] : extra.items()) {
    // The last of two equal members is the one that servers take, but not all of them: no doubles.
    for (const char* taken : {"model", "messages", "prompt", "stream", "stream_options", "n",
                              "max_tokens", "min_tokens", "temperature", "ignore_eos"}) {
      if (name == taken) {
        return absl::InvalidArgumentError(absl::StrCat("'", name, "' is set by other flags"));
      }
    }
    absl::StrAppend(&body.extra_, ",", Dump(name), ":", Dump(value));
  }
  return body;
}

std::string RequestBody::Streamed(const Prompt& prompt, int32_t max_tokens) const {
  std::string body = absl::StrCat(start_, prompt.json, ",\"max_tokens\":", max_tokens,
                                  ",\"temperature\":", options_.temperature, ",\"stream\":true");
  if (options_.include_usage) {
    absl::StrAppend(&body, ",\"stream_options\":{\"include_usage\":true",
                    options_.running_usage ? ",\"continuous_usage_stats\":true" : "", "}");
  }
  if (options_.ignore_eos) {
    absl::StrAppend(&body, ",\"ignore_eos\":true,\"min_tokens\":", max_tokens);
  }
  return absl::StrCat(body, extra_, "}");
}

std::string RequestBody::Whole(const Prompt& prompt) const {
  return absl::StrCat(start_, prompt.json, ",\"max_tokens\":1,\"temperature\":0", extra_, "}");
}

}  // namespace lynx::loadtest
