// Renders chat templates, for comparison with another implementation.
//
//   chat_template_probe < requests.jsonl > answers.jsonl
//
// Request {"template", "messages", "tools" (or null), "variables", "add_generation_prompt", "now"
// (seconds)}: answer {"text"} or {"error", "at_load"}.
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "common/text/chat_template.h"

namespace {

using Json = nlohmann::ordered_json;

Json Answer(const Json& request) {
  const auto parsed = lynx::text::ChatTemplate::Parse(request["template"].get<std::string>(), {});
  if (!parsed.ok()) return {{"error", std::string(parsed.status().message())}, {"at_load", true}};
  lynx::text::ChatInput input;
  for (const Json& entry : request["messages"]) {
    lynx::text::ChatMessage message;
    Json extra = Json::object();
    for (const auto& [key, value] : entry.items()) {
      if (key == "role") {
        message.role = value.get<std::string>();
      } else if (key == "content" && value.is_string()) {
        message.content = value.get<std::string>();
      } else {
        extra[key] = value;
      }
    }
    message.extra_json = extra.dump();
    input.messages.push_back(std::move(message));
  }
  if (!request["tools"].is_null()) input.tools_json = request["tools"].dump();
  input.variables_json = request["variables"].dump();
  input.add_generation_prompt = request["add_generation_prompt"].get<bool>();
  input.now = absl::FromUnixSeconds(request["now"].get<int64_t>());
  const auto text = (*parsed)->Render(input);
  if (!text.ok()) return {{"error", std::string(text.status().message())}, {"at_load", false}};
  return {{"text", text->text}};
}

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    std::cout << Answer(Json::parse(line)).dump() << "\n";
  }
  return 0;
}
