#include "services/cli/loadtest/server_probe.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/json_shape.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/http/client.h"
#include "services/cli/loadtest/random.h"

namespace lynx::loadtest {
namespace {

using Json = nlohmann::json;

constexpr int64_t kFewWords = 16;
constexpr int64_t kManyWords = 112;
// Prompts of each length: words differ in tokens.
constexpr int kPrompts = 3;

http::HttpClient Client() {
  http::HttpClient::Options options;
  options.max_response_bytes = size_t{4} << 20;
  return http::HttpClient(options);
}

// A transport's words do not say what was asked.
absl::Status Name(const std::string& url, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(url, ": ", std::string(status.message())));
}

absl::Status NoUse(const std::string& url, const http::HttpResponse& response,
                   const std::string& what) {
  return absl::UnavailableError(absl::StrCat(url, " ", what, ": HTTP ", response.status, ": ",
                                             ReplaceInvalidUtf8(response.body.substr(0, 300))));
}

// An empty object where the body is none: what is asked of it must not throw.
Json ParseBody(const http::HttpResponse& response) {
  if (!CheckJsonShape(response.body).ok()) return Json::object();
  Json json = Json::parse(response.body, nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json : Json::object();
}

}  // namespace

std::string EndpointUrl(const std::string& base_url, Endpoint endpoint) {
  return base_url + (endpoint == Endpoint::kChat ? "/chat/completions" : "/completions");
}

absl::StatusOr<std::string> FindModel(const std::string& base_url, const http::Headers& headers,
                                      absl::Duration timeout) {
  const std::string url = base_url + "/models";
  const auto got = Client().Get(url, headers, timeout);
  if (!got.ok()) return Name(url, got.status());
  const http::HttpResponse& response = *got;
  const Json json = ParseBody(response);
  const Json id = json.value("/data/0/id"_json_pointer, Json());
  if (response.status != 200 || !id.is_string()) return NoUse(url, response, "names no model");
  return id.get<std::string>();
}

absl::StatusOr<TokenScale> MeasureScale(const std::string& base_url, const http::Headers& headers,
                                        const RequestBody& body, uint64_t seed,
                                        absl::Duration timeout) {
  const std::string url = EndpointUrl(base_url, body.endpoint());
  Random random(MixSeed(seed, 1000));
  const auto count = [&](int64_t words) -> absl::StatusOr<int64_t> {
    int64_t tokens = 0;
    for (int i = 0; i < kPrompts; ++i) {
      const Prompt prompt = PlainPrompt(RandomWords(random, words), body.endpoint());
      const auto posted = Client().Post(url, headers, body.Whole(prompt), timeout);
      if (!posted.ok()) return Name(url, posted.status());
      const http::HttpResponse& response = *posted;
      const Json counted = ParseBody(response).value("/usage/prompt_tokens"_json_pointer, Json());
      if (response.status != 200) return NoUse(url, response, "refuses a small request");
      if (!counted.is_number_unsigned() || counted > 1'000'000) {
        return NoUse(url, response, "gives no usage.prompt_tokens");
      }
      tokens += counted.get<int64_t>();
    }
    return tokens;
  };
  LYNX_ASSIGN_OR_RETURN(const int64_t few, count(kFewWords));
  LYNX_ASSIGN_OR_RETURN(const int64_t many, count(kManyWords));
  TokenScale scale = FitScale(kPrompts * kFewWords, few, kPrompts * kManyWords, many);
  scale.fixed /= kPrompts;
  return scale;
}

}  // namespace lynx::loadtest
