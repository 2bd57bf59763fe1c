#pragma once

#include <cctype>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"

namespace lynx::testing {

// Runs a script of messages, a line each: a word and a message in text form.
//
//   decode reserve { sequence: 1 prompt_tokens: 20 }
//   wait 100
//
// `wait` takes milliseconds. Lines that do not parse are passed over: mutations of a script are
// mostly scripts, too. At most `most` lines count.
template <typename Message>
void RunScript(std::string_view text, int most, const std::function<void(int32_t ms)>& wait,
               const std::function<void(const std::string& word, Message message)>& send) {
  class Silent final : public google::protobuf::io::ErrorCollector {
   public:
    void AddError(int, int, const std::string&) override {}
  };
  Silent silent;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&silent);
  parser.SetRecursionLimit(20);
  for (const std::string& line :
       std::vector<std::string>(absl::StrSplit(std::string(text), '\n'))) {
    if (most-- <= 0) return;
    const size_t space = line.find(' ');
    if (space == std::string::npos) continue;
    const std::string word = line.substr(0, space);
    const std::string rest = line.substr(space + 1);
    int32_t ms = 0;
    if (word == "wait") {
      if (absl::SimpleAtoi(rest, &ms) && ms >= 0 && ms <= 10'000) wait(ms);
      continue;
    }
    if (Message message; parser.ParseFromString(rest, &message)) send(word, std::move(message));
  }
}

}  // namespace lynx::testing
