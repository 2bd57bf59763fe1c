#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/dtype.h"
#include "common/proto/control.pb.h"
#include "common/text/detokenizer.h"
#include "common/text/stop_matcher.h"
#include "common/text/tokenizer.h"
#include "services/router/front/api_response.h"

namespace lynx::router {

// Characters (code points) in well-formed UTF-8.
int64_t CountCharacters(std::string_view utf8);

// The raw bytes and log-probabilities of one token, as an answer shows them.
TokenLogprob ToTokenLogprob(const text::Tokenizer& tokenizer, const proto::Token& token);

// The text of an echoed prompt. Special tokens are spelled out: the client wrote them. A character
// that the prompt leaves unfinished is left to the ChoiceStream, which may complete it.
std::string EchoText(const text::Tokenizer& tokenizer, std::span<const TokenId> prompt);

// Log-probabilities of an echoed prompt, aligned with EchoText(). `tail` has those of its tokens 1
// and up; token 0 has none, since nothing comes before it.
std::vector<TokenLogprob> EchoLogprobs(const text::Tokenizer& tokenizer,
                                       std::span<const TokenId> prompt,
                                       std::span<const proto::Token* const> tail);

// Turns the generated tokens of one choice into the text and the log-probabilities that the client
// gets, piece by piece: whole characters only, and never any of a stop string.
//
// A token's log-probability leaves with the first of its text, or of the text after it when it has
// none of its own. So a client that joins chunks always has both for the same stretch of text, and
// what a stop string cuts off is gone from both.
//
// Pure; not thread-safe. The tokenizer must outlive it.
class ChoiceStream {
 public:
  struct Delta {
    std::string text;
    std::vector<TokenLogprob> logprobs;  // Empty unless `with_logprobs`.
    bool empty() const { return text.empty() && logprobs.empty(); }
  };

  // `echoed`: EchoText() of the prompt stands before this text, and what it held back comes here.
  // Else a character that the prompt begins shows only if it is completed.
  // `text_offset`: characters of the choice's text before the first generated one.
  ChoiceStream(const text::Tokenizer& tokenizer, std::span<const TokenId> prompt,
               text::StopMatcher stops, bool with_logprobs, bool echoed, int64_t text_offset);

  // True when a stop string is complete: the text has ended. Nothing may be pushed afterwards.
  bool Push(const proto::Token& token);

  // No token follows: lets go of what was held back.
  void Finish();

  // What has become safe to send since the last call.
  Delta Take();

 private:
  void Release(const text::StopMatcher::Result& result);

  const text::Tokenizer& tokenizer_;
  text::IncrementalDetokenizer detokenizer_;
  text::StopMatcher stops_;
  const bool with_logprobs_;
  bool stopped_ = false;

  struct Pending {
    TokenLogprob logprob;
    int64_t start_bytes;  // Bytes of text before the token's own.
  };
  std::deque<Pending> pending_;
  int64_t text_bytes_ = 0;      // Detokenised so far.
  int64_t text_characters_;     // The same in characters, and from the start of the choice.
  int64_t released_bytes_ = 0;  // Past the stop matcher.
  Delta ready_;
};

}  // namespace lynx::router
