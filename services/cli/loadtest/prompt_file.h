#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace lynx::loadtest {

enum class Endpoint { kChat, kCompletions };

// One prompt, as it goes into a request.
struct Prompt {
  std::string json;        // The value of "messages" or of "prompt".
  int32_t max_tokens = 0;  // 0: the line says nothing.
};

// JSONL, an object a line: {"prompt": "..."} or {"messages": [...]}, with "max_tokens" if wanted;
// other members are ignored. For chats a prompt becomes one message of the user.
//   InvalidArgument  a malformed line, messages for kCompletions, or no line; names `file`, line
//                    and column.
absl::StatusOr<std::vector<Prompt>> ParsePrompts(std::string_view text, const std::string& file,
                                                 Endpoint endpoint);

// `text` as the whole prompt.
Prompt PlainPrompt(std::string_view text, Endpoint endpoint);

}  // namespace lynx::loadtest
