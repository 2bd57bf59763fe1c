#include "common/text/detokenizer.h"

#include "common/text/internal/tokenizer_impl.h"

namespace lynx::text {

struct IncrementalDetokenizer::State {
  internal::PieceDecoder::State decoder;
};

IncrementalDetokenizer::IncrementalDetokenizer(const Tokenizer& tokenizer,
                                               std::span<const int32_t> prompt,
                                               std::span<const int32_t> already_sent,
                                               bool skip_special)
    : tokenizer_(&tokenizer), skip_special_(skip_special), state_(std::make_unique<State>()) {
  state_->decoder = tokenizer.impl_->decoder->Start();
  for (const int32_t token : prompt) Push(token);
  state_->decoder.prompt_bytes = state_->decoder.pending.size();
  for (const int32_t token : already_sent) Push(token);
}

IncrementalDetokenizer::IncrementalDetokenizer(const IncrementalDetokenizer& other)
    : tokenizer_(other.tokenizer_),
      skip_special_(other.skip_special_),
      state_(std::make_unique<State>(*other.state_)) {}

IncrementalDetokenizer& IncrementalDetokenizer::operator=(const IncrementalDetokenizer& other) {
  if (this != &other) *this = IncrementalDetokenizer(other);
  return *this;
}

IncrementalDetokenizer::IncrementalDetokenizer(IncrementalDetokenizer&&) noexcept = default;
IncrementalDetokenizer& IncrementalDetokenizer::operator=(IncrementalDetokenizer&&) noexcept =
    default;
IncrementalDetokenizer::~IncrementalDetokenizer() = default;

std::string IncrementalDetokenizer::Push(int32_t token) {
  std::string text;
  const Tokenizer::Impl& impl = *tokenizer_->impl_;
  const Tokenizer::Impl::Token* entry = impl.Find(token);
  if (entry == nullptr || (skip_special_ && entry->special)) return text;
  impl.decoder->Push(entry->piece, state_->decoder, text);
  return text;
}

std::string IncrementalDetokenizer::Flush() {
  std::string text;
  tokenizer_->impl_->decoder->Finish(state_->decoder, text);
  return text;
}

}  // namespace lynx::text
