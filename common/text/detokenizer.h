#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/text/tokenizer.h"

namespace lynx::text {

// Turns a stream of generated tokens into text as it becomes complete.
//
// Every returned string is valid UTF-8 and never ends inside a character; all of them joined, with
// Flush(), are what one decode of the whole would give. Text of the prompt is never returned, with
// one exception: a character that the prompt begins and the output completes is returned whole.
// One that is never completed vanishes without a mark, since the mark belongs where it begins.
//
// To resume a stream elsewhere, construct with the same prompt and the tokens already sent: what
// Push() gives then goes on where the first stream stopped.
//
// Copyable. Not thread-safe. The tokenizer must outlive it.
class IncrementalDetokenizer {
 public:
  // `prompt` is the whole prompt, or its tail: at least its last four tokens that are not special
  // (decoders that treat the start of a text specially need to know that it is not the start).
  // O(tokens given).
  IncrementalDetokenizer(const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                         std::span<const int32_t> already_sent, bool skip_special);
  IncrementalDetokenizer(const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                         bool skip_special)
      : IncrementalDetokenizer(tokenizer, prompt, {}, skip_special) {}
  IncrementalDetokenizer(const IncrementalDetokenizer& other);
  IncrementalDetokenizer& operator=(const IncrementalDetokenizer& other);
  IncrementalDetokenizer(IncrementalDetokenizer&&) noexcept;
  IncrementalDetokenizer& operator=(IncrementalDetokenizer&&) noexcept;
  ~IncrementalDetokenizer();

  // The text that `token` completes; empty when it ends inside a character, is a skipped special
  // token, or names no token.
  std::string Push(int32_t token);

  // At the end of the stream: U+FFFD for an unfinished character, else nothing. Nothing may be
  // pushed afterwards.
  std::string Flush();

 private:
  struct State;

  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::unique_ptr<State> state_;
};

}  // namespace lynx::text
