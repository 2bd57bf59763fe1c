// Any bytes as a tokenizer.json: a clear error, or a tokenizer whose texts are valid and whose
// streams equal its whole decodes.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/check.h"
#include "common/base/utf8.h"
#include "common/text/detokenizer.h"
#include "common/text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using lynx::text::IncrementalDetokenizer;
  const auto tokenizer = lynx::text::Tokenizer::Parse({reinterpret_cast<const char*>(data), size});
  if (!tokenizer.ok()) {
    LYNX_CHECK(!tokenizer.status().message().empty());
    return 0;
  }
  for (const std::string_view text : {"", " ", "Hello, world! it's 12345",
                                      "  a\u0301\u00e9 <s></s> \u2581x\n\n", "中文🎉\r\n\t"}) {
    const auto ids = (*tokenizer)->Encode(text, true);
    if (!ids.ok()) continue;
    for (const int32_t id : *ids) LYNX_CHECK((*tokenizer)->IsValidId(id));
  }
  std::vector<int32_t> ids;
  for (int32_t id = -1; id < 40; ++id) ids.push_back(id * 7 % 40);
  for (const bool skip_special : {false, true}) {
    const std::string whole = (*tokenizer)->Decode(ids, skip_special);
    LYNX_CHECK(lynx::IsValidUtf8(whole));
    IncrementalDetokenizer stream(**tokenizer, {}, skip_special);
    std::string joined;
    for (const int32_t id : ids) joined += stream.Push(id);
    LYNX_CHECK(joined + stream.Flush() == whole);
  }
  return 0;
}
