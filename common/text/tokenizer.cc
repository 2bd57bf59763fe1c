#include "common/text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/text/internal/json_file.h"
#include "common/text/internal/tokenizer_impl.h"

namespace lynx::text {
namespace {

using internal::AddedToken;
using internal::BadJson;
using internal::FindField;
using internal::Json;

constexpr int64_t kMaxTokenizerBytes = int64_t{256} << 20;
constexpr int64_t kMaxConfigBytes = int64_t{16} << 20;
constexpr size_t kMaxTextBytes = size_t{256} << 20;

absl::StatusOr<std::vector<AddedToken>> ReadAddedTokens(const Json& root, const std::string& file) {
  std::vector<AddedToken> tokens;
  const Json* list = FindField(root, "added_tokens");
  if (list == nullptr) return tokens;
  if (!list->is_array()) return BadJson(file, "'added_tokens' must be an array");
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string place = absl::StrCat(file, ": added_tokens[", i, "]");
    const Json& entry = (*list)[i];
    AddedToken token;
    LYNX_ASSIGN_OR_RETURN(token.content, internal::StringField(entry, "content", place));
    const Json* id = FindField(entry, "id");
    if (id == nullptr) return BadJson(place, "'id' is missing");
    LYNX_ASSIGN_OR_RETURN(token.id, internal::ToTokenId(*id, place));
    LYNX_ASSIGN_OR_RETURN(token.special, internal::BoolField(entry, "special", false, place));
    LYNX_ASSIGN_OR_RETURN(token.normalized,
                          internal::BoolField(entry, "normalized", !token.special, place));
    LYNX_ASSIGN_OR_RETURN(token.lstrip, internal::BoolField(entry, "lstrip", false, place));
    LYNX_ASSIGN_OR_RETURN(token.rstrip, internal::BoolField(entry, "rstrip", false, place));
    LYNX_ASSIGN_OR_RETURN(token.single_word,
                          internal::BoolField(entry, "single_word", false, place));
    if (token.content.empty()) return BadJson(place, "'content' is empty");
    tokens.push_back(std::move(token));
  }
  // Where two are spelt alike once normalised, special tokens win.
  std::stable_partition(tokens.begin(), tokens.end(),
                        [](const AddedToken& token) { return token.special; });
  return tokens;
}

}  // namespace

absl::StatusOr<bool> Tokenizer::Impl::SpellsSpecial(std::string_view text, TextRange part,
                                                    std::span<const TextRange> plain) const {
  if (!has_normalized_specials) return false;
  auto range = std::partition_point(plain.begin(), plain.end(),
                                    [&](const TextRange& one) { return one.end <= part.begin; });
  for (; range != plain.end() && range->begin < part.end; ++range) {
    const size_t begin = std::max(range->begin, part.begin);
    std::string given(text.substr(begin, std::min(range->end, part.end) - begin));
    if (normalized_tokens.HasSpecial(given)) return true;
    LYNX_RETURN_IF_ERROR(normalizer->Apply(given));
    if (normalized_tokens.HasSpecial(given)) return true;
  }
  return false;
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::filesystem::path& model_dir) {
  const std::string file = (model_dir / "tokenizer.json").string();
  LYNX_ASSIGN_OR_RETURN(const Json root, internal::ReadJsonObject(file, kMaxTokenizerBytes));
  LYNX_ASSIGN_OR_RETURN(std::unique_ptr<Impl> impl, Impl::Create(root, file));
  auto tokenizer = std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
  LYNX_RETURN_IF_ERROR(tokenizer->AddConfiguredBos((model_dir / "tokenizer_config.json").string()));
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Parse(std::string_view tokenizer_json) {
  const std::string place = "tokenizer.json";
  LYNX_ASSIGN_OR_RETURN(const Json root, internal::ParseJsonObject(tokenizer_json, place));
  LYNX_ASSIGN_OR_RETURN(std::unique_ptr<Impl> impl, Impl::Create(root, place));
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
}

absl::StatusOr<std::unique_ptr<Tokenizer::Impl>> Tokenizer::Impl::Create(const Json& root,
                                                                         const std::string& file) {
  auto impl = std::make_unique<Impl>();

  LYNX_ASSIGN_OR_RETURN(impl->normalizer, internal::CreateNormalizer(FindField(root, "normalizer"),
                                                                     file + ": normalizer"));
  LYNX_ASSIGN_OR_RETURN(
      impl->pre_tokenizer,
      internal::CreatePreTokenizer(FindField(root, "pre_tokenizer"), file + ": pre_tokenizer"));
  LYNX_ASSIGN_OR_RETURN(impl->decoder, internal::PieceDecoder::Create(FindField(root, "decoder"),
                                                                      file + ": decoder"));
  const Json* model = FindField(root, "model");
  if (model == nullptr) return BadJson(file, "'model' is missing");
  LYNX_ASSIGN_OR_RETURN(impl->model, internal::CreateModel(*model, file + ": model"));

  const auto add = [&impl](const std::string& content, int32_t id, bool special) -> absl::Status {
    if (static_cast<size_t>(id) >= impl->tokens.size()) {
      impl->tokens.resize(static_cast<size_t>(id) + 1);
    }
    Impl::Token& token = impl->tokens[static_cast<size_t>(id)];
    LYNX_ASSIGN_OR_RETURN(token.piece, impl->decoder->Prepare(content));
    token.exists = true;
    token.special = special;
    return absl::OkStatus();
  };
  for (const auto& [content, id] : impl->model->vocab()) {
    const bool taken = static_cast<size_t>(id) < impl->tokens.size() &&
                       impl->tokens[static_cast<size_t>(id)].exists;
    if (taken) {
      return BadJson(file + ": model.vocab", absl::StrCat("two tokens have id ", id));
    }
    LYNX_RETURN_IF_ERROR(add(content, id, false));
  }
  LYNX_ASSIGN_OR_RETURN(const std::vector<AddedToken> added, ReadAddedTokens(root, file));
  std::vector<AddedToken> raw;
  std::vector<AddedToken> normalized;
  std::vector<std::string> raw_spellings;
  std::vector<std::string> normalized_spellings;
  for (const AddedToken& token : added) {
    const int32_t in_vocabulary = impl->model->Find(token.content);
    const bool clash =
        in_vocabulary >= 0 ? in_vocabulary != token.id : impl->Find(token.id) != nullptr;
    if (clash || !impl->added_ids.emplace(token.content, token.id).second) {
      return BadJson(file + ": added_tokens", absl::StrCat("'", token.content, "' with id ",
                                                           token.id, " contradicts another token"));
    }
    std::string spelling = token.content;
    if (token.normalized) LYNX_RETURN_IF_ERROR(impl->normalizer->Apply(spelling));
    // Decoded as it is spelt in normalised text, as the reference does.
    LYNX_RETURN_IF_ERROR(add(spelling, token.id, token.special));
    impl->has_normalized_specials =
        impl->has_normalized_specials || (token.normalized && token.special);
    (token.normalized ? normalized : raw).push_back(token);
    (token.normalized ? normalized_spellings : raw_spellings).push_back(std::move(spelling));
  }
  impl->raw_tokens = internal::AddedTokenFinder(std::move(raw), raw_spellings);
  impl->normalized_tokens = internal::AddedTokenFinder(std::move(normalized), normalized_spellings);

  const std::string post = file + ": post_processor";
  LYNX_ASSIGN_OR_RETURN(impl->post_processor,
                        internal::CreatePostProcessor(FindField(root, "post_processor"), post));
  for (const auto* ids : {&impl->post_processor.prefix, &impl->post_processor.suffix}) {
    for (const int32_t id : *ids) {
      if (impl->Find(id) == nullptr) return BadJson(post, absl::StrCat("id ", id, " is no token"));
    }
  }
  return impl;
}

absl::Status Tokenizer::AddConfiguredBos(const std::string& file) {
  absl::StatusOr<Json> config = internal::ReadJsonObject(file, kMaxConfigBytes);
  if (absl::IsNotFound(config.status())) return absl::OkStatus();
  LYNX_RETURN_IF_ERROR(config.status());
  LYNX_ASSIGN_OR_RETURN(const bool add, internal::BoolField(*config, "add_bos_token", false, file));
  const Json* bos = FindField(*config, "bos_token");
  if (!add || bos == nullptr || !impl_->post_processor.prefix.empty()) return absl::OkStatus();
  // Either the spelling itself or an object that describes the token.
  const Json* content = bos->is_object() ? FindField(*bos, "content") : bos;
  if (content == nullptr || !content->is_string()) {
    return BadJson(file, "'bos_token' must be a string or hold one");
  }
  const std::optional<int32_t> id = TokenToId(content->get<std::string>());
  if (!id.has_value()) {
    return BadJson(file, "bos_token '" + content->get<std::string>() + "' is no token");
  }
  impl_->post_processor.prefix.push_back(*id);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(std::string_view text,
                                                       bool add_special_tokens,
                                                       std::span<const TextRange> plain) const {
  if (text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("text of ", text.size(), " bytes is over the limit of ", kMaxTextBytes));
  }
  for (size_t i = 0; i < text.size();) {
    const size_t length = Utf8SequenceLength(text.substr(i, 4));
    if (length == 0) {
      return absl::InvalidArgumentError(absl::StrCat("text is not valid UTF-8 at byte ", i));
    }
    i += length;
  }
  std::vector<int32_t> ids;
  if (add_special_tokens) ids = impl_->post_processor.prefix;
  for (const auto& outer : impl_->raw_tokens.Find(text, plain)) {
    if (outer.id >= 0) {
      ids.push_back(outer.id);
      continue;
    }
    std::string normalized(text.substr(outer.begin, outer.end - outer.begin));
    LYNX_RETURN_IF_ERROR(impl_->normalizer->Apply(normalized));
    // Places in normalised text are not those of `plain`: the whole part is plain when what users
    // wrote of it spells a special token.
    LYNX_ASSIGN_OR_RETURN(const bool is_plain,
                          impl_->SpellsSpecial(text, {outer.begin, outer.end}, plain));
    std::vector<TextRange> inner_plain;
    if (is_plain) inner_plain.push_back({0, normalized.size()});
    for (const auto& inner : impl_->normalized_tokens.Find(normalized, inner_plain)) {
      if (inner.id >= 0) {
        ids.push_back(inner.id);
        continue;
      }
      internal::SplitText split;
      split.text = normalized.substr(inner.begin, inner.end - inner.begin);
      split.words = {{0, split.text.size(), outer.begin == 0 && inner.begin == 0}};
      LYNX_RETURN_IF_ERROR(impl_->pre_tokenizer->Apply(split));
      for (const auto& word : split.words) {
        impl_->model->Encode(std::string_view(split.text).substr(word.begin, word.end - word.begin),
                             ids);
      }
    }
  }
  if (add_special_tokens) {
    const std::vector<int32_t>& suffix = impl_->post_processor.suffix;
    ids.insert(ids.end(), suffix.begin(), suffix.end());
  }
  return ids;
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string text;
  internal::PieceDecoder::State state = impl_->decoder->Start();
  for (const int32_t id : ids) {
    const Impl::Token* token = impl_->Find(id);
    if (token == nullptr || (skip_special && token->special)) continue;
    impl_->decoder->Push(token->piece, state, text);
  }
  impl_->decoder->Finish(state, text);
  return text;
}

std::string Tokenizer::TokenBytes(int32_t id) const {
  const Impl::Token* token = impl_->Find(id);
  return token == nullptr ? std::string() : token->piece.bytes;
}

std::optional<int32_t> Tokenizer::TokenToId(std::string_view token) const {
  const auto it = impl_->added_ids.find(absl::string_view(token.data(), token.size()));
  if (it != impl_->added_ids.end()) return it->second;
  const int32_t id = impl_->model->Find(token);
  return id < 0 ? std::nullopt : std::optional<int32_t>(id);
}

int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(impl_->tokens.size()); }
bool Tokenizer::IsValidId(int32_t id) const { return impl_->Find(id) != nullptr; }
bool Tokenizer::IsSpecial(int32_t id) const {
  const Impl::Token* token = impl_->Find(id);
  return token != nullptr && token->special;
}

}  // namespace lynx::text
