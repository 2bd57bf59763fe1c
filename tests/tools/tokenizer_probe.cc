// Answers questions about a tokenizer, for comparison with another implementation.
//
//   tokenizer_probe MODEL_DIR < requests.jsonl > answers.jsonl
//
// Request {"text": ..., "cuts": bool}: answer {"ids", "ids_with_special", "ids_as_text",
// "decoded", "decoded_skip", "cuts"}, where cuts[i] is the joined stream of ids[i..] behind the
// prompt ids[..i]. Request {"ids": [...]}: answer {"decoded", "decoded_skip", "deltas", "resumed"},
// where deltas are what each Push and the Flush gave, and resumed[i] the joined rest after i tokens
// already sent.
#include <cstdint>
#include <iostream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "common/text/detokenizer.h"
#include "common/text/tokenizer.h"

namespace {

using lynx::text::IncrementalDetokenizer;
using lynx::text::Tokenizer;
using Json = nlohmann::json;

std::string Join(IncrementalDetokenizer stream, std::span<const int32_t> ids) {
  std::string text;
  for (const int32_t id : ids) text += stream.Push(id);
  return text + stream.Flush();
}

Json Answer(const Tokenizer& tokenizer, const Json& request) {
  Json answer;
  std::vector<int32_t> ids;
  const bool from_text = request.contains("text");
  if (from_text) {
    const auto encoded = tokenizer.Encode(request["text"].get<std::string>(), false);
    if (!encoded.ok()) return {{"error", std::string(encoded.status().message())}};
    ids = *encoded;
    answer["ids"] = ids;
    const auto text = request["text"].get<std::string>();
    answer["ids_with_special"] = tokenizer.Encode(text, true).value();
    const lynx::text::TextRange all{0, text.size()};
    answer["ids_as_text"] = tokenizer.Encode(text, false, {&all, 1}).value();
  } else {
    ids = request["ids"].get<std::vector<int32_t>>();
  }
  answer["decoded"] = tokenizer.Decode(ids, false);
  answer["decoded_skip"] = tokenizer.Decode(ids, true);
  const std::span<const int32_t> all = ids;
  if (from_text) {
    if (!request["cuts"].get<bool>()) return answer;
    for (size_t cut = 0; cut <= ids.size(); ++cut) {
      answer["cuts"].push_back(
          Join(IncrementalDetokenizer(tokenizer, all.first(cut), false), all.subspan(cut)));
    }
    return answer;
  }
  IncrementalDetokenizer stream(tokenizer, {}, false);
  for (const int32_t id : ids) answer["deltas"].push_back(stream.Push(id));
  answer["deltas"].push_back(stream.Flush());
  for (size_t cut = 0; cut <= ids.size(); ++cut) {
    answer["resumed"].push_back(
        Join(IncrementalDetokenizer(tokenizer, {}, all.first(cut), false), all.subspan(cut)));
  }
  return answer;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: tokenizer_probe MODEL_DIR < requests.jsonl\n";
    return 2;
  }
  const auto tokenizer = Tokenizer::Load(argv[1]);
  if (!tokenizer.ok()) {
    std::cerr << tokenizer.status() << "\n";
    return 1;
  }
  std::string line;
  while (std::getline(std::cin, line)) {
    // dump() throws on text that is not valid UTF-8, which fails the comparison as it should.
    std::cout << Answer(**tokenizer, Json::parse(line)).dump() << "\n";
  }
  return 0;
}
