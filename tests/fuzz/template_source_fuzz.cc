// Any bytes as a chat template: refused with a line, or rendered within its limits into valid
// UTF-8.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/utf8.h"
#include "common/text/internal/jinja/interpreter.h"
#include "common/text/internal/jinja/parser.h"

namespace {

using lynx::text::jinja::Value;

const std::vector<std::pair<std::string, Value>>& Variables() {
  static const auto* variables = [] {
    constexpr std::string_view kMessages = R"([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Gr\u00fc\u00dfe"}, {"type": "image"}]},
        {"role": "assistant", "content": null, "tool_calls": [
            {"function": {"name": "f", "arguments": {"a": [1, 2.5, true, null], "b": "x"}}}]},
        {"role": "tool", "content": "<think>\nno\n</think>\n\n4"}])";
    constexpr std::string_view kTools = R"([{"type": "function", "function": {"name": "f",
        "parameters": {"type": "object", "properties": {"a": {"type": "array"}}}}}])";
    return new std::vector<std::pair<std::string, Value>>{
        {"messages", lynx::text::jinja::FromJson(kMessages, "messages").value()},
        {"tools", lynx::text::jinja::FromJson(kTools, "tools").value()},
        {"bos_token", Value("<s>")},
        {"add_generation_prompt", Value(true)}};
  }();
  return *variables;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  if (!lynx::IsValidUtf8(source)) return 0;  // Refused before the parser sees it.
  const auto parsed = lynx::text::jinja::Parse(source);
  if (!parsed.ok()) {
    LYNX_CHECK(parsed.status().message().find("line ") != absl::string_view::npos);
    return 0;
  }
  lynx::text::jinja::RenderOptions options;
  options.max_work = int64_t{1} << 20;
  const auto text = lynx::text::jinja::Render(*parsed, Variables(), options);
  if (text.ok()) LYNX_CHECK(lynx::IsValidUtf8(text->bytes()));
  return 0;
}
