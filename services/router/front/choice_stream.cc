#include "services/router/front/choice_stream.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace lynx::router {
namespace {

// The end of the prompt that decides how the first generated token reads. A prompt may have a
// million tokens and a request a hundred choices, so not all of it.
std::span<const TokenId> ContextTail(const text::Tokenizer& tokenizer,
                                     std::span<const TokenId> prompt) {
  constexpr int kTextTokens = 8;  // The detokeniser needs four.
  size_t begin = prompt.size();
  for (int found = 0; begin > 0 && found < kTextTokens; --begin) {
    if (!tokenizer.IsSpecial(prompt[begin - 1])) ++found;
  }
  return prompt.subspan(begin);
}

text::IncrementalDetokenizer MakeDetokenizer(const text::Tokenizer& tokenizer,
                                             std::span<const TokenId> prompt, bool echoed) {
  const std::span<const TokenId> tail = ContextTail(tokenizer, prompt);
  // What EchoText() held back is due here. A special token, which it spells out, ends a character.
  const bool owed = echoed && !tail.empty() && !tokenizer.IsSpecial(tail.back());
  const std::span<const TokenId> none;
  return {tokenizer, owed ? none : tail, owed ? tail : none, /*skip_special=*/true};
}

}  // namespace

int64_t CountCharacters(std::string_view utf8) {
  return std::count_if(utf8.begin(), utf8.end(), [](char byte) {
    return (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U;
  });
}

TokenLogprob ToTokenLogprob(const text::Tokenizer& tokenizer, const proto::Token& token) {
  TokenLogprob result;
  result.bytes = tokenizer.TokenBytes(token.id());
  if (token.has_logprob()) result.logprob = token.logprob();
  result.top.reserve(static_cast<size_t>(token.top_size()));
  for (const proto::TopLogprob& other : token.top()) {
    result.top.push_back({tokenizer.TokenBytes(other.token()), other.logprob()});
  }
  return result;
}

std::string EchoText(const text::Tokenizer& tokenizer, std::span<const TokenId> prompt) {
  text::IncrementalDetokenizer detokenizer(tokenizer, {}, /*skip_special=*/false);
  std::string text;
  for (const TokenId id : prompt) text += detokenizer.Push(id);
  return text;
}

std::vector<TokenLogprob> EchoLogprobs(const text::Tokenizer& tokenizer,
                                       std::span<const TokenId> prompt,
                                       std::span<const proto::Token* const> tail) {
  std::vector<TokenLogprob> result;
  result.reserve(prompt.size());
  text::IncrementalDetokenizer detokenizer(tokenizer, {}, /*skip_special=*/false);
  int64_t characters = 0;
  for (size_t i = 0; i < prompt.size(); ++i) {
    TokenLogprob entry;
    if (i > 0 && i - 1 < tail.size()) {
      entry = ToTokenLogprob(tokenizer, *tail[i - 1]);
    } else {
      entry.bytes = tokenizer.TokenBytes(prompt[i]);
    }
    entry.text_offset = characters;
    characters += CountCharacters(detokenizer.Push(prompt[i]));
    result.push_back(std::move(entry));
  }
  return result;
}

ChoiceStream::ChoiceStream(const text::Tokenizer& tokenizer, std::span<const TokenId> prompt,
                           text::StopMatcher stops, bool with_logprobs, bool echoed,
                           int64_t text_offset)
    : tokenizer_(tokenizer),
      detokenizer_(MakeDetokenizer(tokenizer, prompt, echoed)),
      stops_(std::move(stops)),
      with_logprobs_(with_logprobs),
      text_characters_(text_offset) {}

bool ChoiceStream::Push(const proto::Token& token) {
  LYNX_CHECK(!stopped_);
  if (with_logprobs_) {
    Pending pending{ToTokenLogprob(tokenizer_, token), text_bytes_};
    pending.logprob.text_offset = text_characters_;
    pending_.push_back(std::move(pending));
  }
  const std::string text = detokenizer_.Push(token.id());
  text_bytes_ += static_cast<int64_t>(text.size());
  text_characters_ += CountCharacters(text);
  Release(stops_.Push(text));
  return stopped_;
}

void ChoiceStream::Finish() {
  if (stopped_) return;
  Release(stops_.Push(detokenizer_.Flush()));
  if (!stopped_) Release({stops_.Flush(), std::nullopt});
  if (!stopped_) {
    for (Pending& pending : pending_) ready_.logprobs.push_back(std::move(pending.logprob));
    pending_.clear();
  }
  stopped_ = true;
}

void ChoiceStream::Release(const text::StopMatcher::Result& result) {
  ready_.text += result.text;
  released_bytes_ += static_cast<int64_t>(result.text.size());
  while (!pending_.empty() && pending_.front().start_bytes < released_bytes_) {
    ready_.logprobs.push_back(std::move(pending_.front().logprob));
    pending_.pop_front();
  }
  if (result.stop.has_value()) {
    stopped_ = true;
    pending_.clear();
  }
}

ChoiceStream::Delta ChoiceStream::Take() { return std::exchange(ready_, {}); }

}  // namespace lynx::router
