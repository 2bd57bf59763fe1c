#include "services/cli/loadtest/prompt_file.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "services/cli/loadtest/json_line.h"
#include "services/cli/loadtest/lengths.h"
#include "services/cli/loadtest/text_position.h"

namespace lynx::loadtest {
namespace {

using Json = nlohmann::json;

}  // namespace

Prompt PlainPrompt(std::string_view text, Endpoint endpoint) {
  Prompt prompt;
  if (endpoint == Endpoint::kChat) prompt.json = R"([{"role":"user","content":)";
  prompt.json += '"';
  AppendJsonEscaped(text, prompt.json);
  prompt.json += '"';
  if (endpoint == Endpoint::kChat) prompt.json += "}]";
  return prompt;
}

absl::StatusOr<std::vector<Prompt>> ParsePrompts(std::string_view text, const std::string& file,
                                                 Endpoint endpoint) {
  std::vector<Prompt> prompts;
  const auto read = [&](std::string_view line, size_t number) -> absl::Status {
    LYNX_ASSIGN_OR_RETURN(const Json json, ParseJsonLine(line, file, number));
    const auto bad = [&](const char* name, std::string_view what) {
      return ErrorAt(file, number, ColumnOfMember(line, name), what);
    };
    Prompt prompt;
    const auto plain = json.find("prompt");
    const auto messages = json.find("messages");
    if ((plain == json.end()) == (messages == json.end())) {
      return ErrorAt(file, number, 1, "wanted either prompt or messages");
    }
    if (plain != json.end()) {
      if (!plain->is_string()) return bad("prompt", "prompt: wanted a text");
      prompt = PlainPrompt(plain->get<std::string>(), endpoint);
    } else {
      if (endpoint != Endpoint::kChat) {
        return bad("messages", "messages are for --endpoint chat; completions take prompt");
      }
      if (!messages->is_array() || messages->empty()) {
        return bad("messages", "messages: wanted a list of at least one");
      }
      prompt.json = messages->dump(-1, ' ', false, Json::error_handler_t::replace);
    }
    if (const auto limit = json.find("max_tokens"); limit != json.end()) {
      if (!limit->is_number_unsigned() || *limit == 0 || *limit > kMaxTokens) {
        return bad("max_tokens",
                   absl::StrCat("max_tokens: wanted an integer from 1 to ", kMaxTokens));
      }
      prompt.max_tokens = limit->get<int32_t>();
    }
    prompts.push_back(std::move(prompt));
    return absl::OkStatus();
  };
  LYNX_RETURN_IF_ERROR(ForEachLine(text, read));
  if (prompts.empty()) return absl::InvalidArgumentError(file + ": holds no prompt");
  return prompts;
}

}  // namespace lynx::loadtest
