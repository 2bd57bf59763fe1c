// Any bytes as what a request gives a chat template, for all templates of the tests: an error, or
// valid UTF-8.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/check.h"
#include "common/base/utf8.h"
#include "common/text/chat_template.h"
#include "common/text/internal/json_file.h"

namespace {

using lynx::text::ChatTemplate;

const std::vector<std::unique_ptr<ChatTemplate>>& Templates() {
  static const auto* templates = [] {
    auto* all = new std::vector<std::unique_ptr<ChatTemplate>>();
    for (const auto& file :
         std::filesystem::directory_iterator("tests/common/text/testdata/templates")) {
      const auto source = lynx::text::internal::ReadBoundedFile(file.path(), 1 << 20);
      all->push_back(ChatTemplate::Parse(source.value(), {{"bos_token", "<s>"}}).value());
    }
    LYNX_CHECK(!all->empty());
    return all;
  }();
  return *templates;
}

}  // namespace

// The bytes are four texts, each ended by a zero byte: extra members of a message, tools,
// variables, and the content of a second message.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<std::string> parts(4);
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  for (std::string& part : parts) {
    part = std::string(rest.substr(0, rest.find('\0')));
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
  }
  lynx::text::ChatInput input;
  input.messages.push_back({.role = "assistant", .content = "Hi", .extra_json = parts[0]});
  input.messages.push_back({.role = "user", .content = parts[3], .extra_json = ""});
  input.tools_json = parts[1];
  input.variables_json = parts[2];
  for (const auto& chat : Templates()) {
    const auto text = chat->Render(input);
    if (text.ok()) LYNX_CHECK(lynx::IsValidUtf8(text->text));
  }
  return 0;
}
