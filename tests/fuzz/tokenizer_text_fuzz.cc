// Any bytes as a text, for one tokenizer of each kind: refused when it is not UTF-8, else ids of
// real tokens, no special ones where the text is plain, and a stream that equals the whole decode.
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
#include "common/text/detokenizer.h"
#include "common/text/internal/json_file.h"
#include "common/text/tokenizer.h"

namespace {

using lynx::text::IncrementalDetokenizer;
using lynx::text::Tokenizer;

const std::vector<std::unique_ptr<Tokenizer>>& Tokenizers() {
  static const auto* tokenizers = [] {
    auto* all = new std::vector<std::unique_ptr<Tokenizer>>();
    for (const auto& file :
         std::filesystem::directory_iterator("tests/fuzz/corpus/tokenizer_json")) {
      const auto content = lynx::text::internal::ReadBoundedFile(file.path(), 1 << 20);
      auto tokenizer = Tokenizer::Parse(content.value());
      if (tokenizer.ok()) all->push_back(*std::move(tokenizer));
    }
    LYNX_CHECK(all->size() >= 4);
    return all;
  }();
  return *tokenizers;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const lynx::text::TextRange all{0, size};
  for (const auto& tokenizer : Tokenizers()) {
    const auto ids = tokenizer->Encode(text, false);
    if (!lynx::IsValidUtf8(text)) {
      LYNX_CHECK(!ids.ok());
      return 0;
    }
    LYNX_CHECK(ids.ok());
    const std::string whole = tokenizer->Decode(*ids, false);
    LYNX_CHECK(lynx::IsValidUtf8(whole));
    IncrementalDetokenizer stream(*tokenizer, {}, false);
    std::string joined;
    for (const int32_t id : *ids) {
      LYNX_CHECK(tokenizer->IsValidId(id));
      joined += stream.Push(id);
    }
    LYNX_CHECK(joined + stream.Flush() == whole);
    const auto plain = tokenizer->Encode(text, false, {&all, 1}).value();
    // Unknown characters may be a special token of the model itself.
    LYNX_CHECK(std::none_of(plain.begin(), plain.end(), [&](int32_t id) {
      return id != tokenizer->TokenToId("<unk>") && tokenizer->IsSpecial(id);
    }));
  }
  return 0;
}
