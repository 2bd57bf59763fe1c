#include "services/router/front/api_response.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/utf8.h"

namespace lynx::router {
namespace {

using Json = nlohmann::ordered_json;  // Keys in the order of OpenAI's documentation.

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json FinishReasonJson(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return nullptr;
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
  }
  return nullptr;
}

double Finite(float logprob) {
  // Written so that a NaN that slipped through still gives valid JSON.
  return logprob > kLogprobFloor ? std::min(static_cast<double>(logprob), 0.0)
                                 : static_cast<double>(kLogprobFloor);
}

Json BytesJson(std::string_view bytes) {
  Json list = Json::array();
  for (const char byte : bytes) list.push_back(static_cast<unsigned char>(byte));
  return list;
}

Json ChatTokenJson(std::string_view bytes, float logprob) {
  return {
      {"token", ShowTokenBytes(bytes)}, {"logprob", Finite(logprob)}, {"bytes", BytesJson(bytes)}};
}

Json ChatLogprobsJson(std::span<const TokenLogprob> tokens) {
  Json content = Json::array();
  for (const TokenLogprob& token : tokens) {
    Json entry = ChatTokenJson(token.bytes, token.logprob.value_or(kLogprobFloor));
    Json top = Json::array();
    for (const auto& other : token.top) top.push_back(ChatTokenJson(other.bytes, other.logprob));
    entry["top_logprobs"] = std::move(top);
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

Json CompletionLogprobsJson(std::span<const TokenLogprob> tokens) {
  Json names = Json::array();
  Json logprobs = Json::array();
  Json tops = Json::array();
  Json offsets = Json::array();
  for (const TokenLogprob& token : tokens) {
    names.push_back(ShowTokenBytes(token.bytes));
    offsets.push_back(token.text_offset);
    if (!token.logprob.has_value()) {
      logprobs.push_back(nullptr);
      tops.push_back(nullptr);
      continue;
    }
    logprobs.push_back(Finite(*token.logprob));
    // A map by text: of two tokens that read alike the likelier stays. The chosen token is always
    // in it, so it may have one more entry than asked for.
    Json top = Json::object();
    for (const auto& other : token.top) {
      top.emplace(ShowTokenBytes(other.bytes), Finite(other.logprob));
    }
    top.emplace(ShowTokenBytes(token.bytes), Finite(*token.logprob));
    tops.push_back(std::move(top));
  }
  return {{"tokens", std::move(names)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

Json LogprobsJson(Api api, const Choice& choice) {
  if (!choice.logprobs.has_value()) return nullptr;
  return api == Api::kChat ? ChatLogprobsJson(*choice.logprobs)
                           : CompletionLogprobsJson(*choice.logprobs);
}

Json HeadJson(const ResponseHead& head, const char* object) {
  return {{"id", head.id},
          {"object", object},
          {"created", head.created_s},
          {"model", head.model},
          {"system_fingerprint", head.system_fingerprint}};
}

Json UsageJson(const Usage& usage) {
  Json json = {
      {"prompt_tokens", usage.prompt_tokens},
      {"completion_tokens", usage.completion_tokens},
      {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
      {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}, {"audio_tokens", 0}}},
      {"completion_tokens_details",
       {{"reasoning_tokens", 0},
        {"audio_tokens", 0},
        {"accepted_prediction_tokens", 0},
        {"rejected_prediction_tokens", 0}}}};
  if (usage.failovers > 0) json["lynx"] = {{"failovers", usage.failovers}};
  return json;
}

Json ModelJson(std::string_view name, int64_t created_s, int32_t max_context_tokens) {
  return {{"id", std::string(name)},
          {"object", "model"},
          {"created", created_s},
          {"owned_by", "lynx"},
          {"max_model_len", max_context_tokens}};
}

const char* ChunkObject(Api api) {
  return api == Api::kChat ? "chat.completion.chunk" : "text_completion";
}

}  // namespace

std::string ShowTokenBytes(std::string_view bytes) {
  if (IsValidUtf8(bytes)) return std::string(bytes);
  std::string shown = "bytes:";
  for (const char byte : bytes) {
    absl::StrAppendFormat(&shown, "\\x%02x", static_cast<unsigned char>(byte));
  }
  return shown;
}

std::string BuildResponse(const ResponseHead& head, std::span<const Choice> choices,
                          const Usage& usage) {
  const bool chat = head.api == Api::kChat;
  Json json = HeadJson(head, chat ? "chat.completion" : "text_completion");
  Json list = Json::array();
  for (const Choice& choice : choices) {
    LYNX_CHECK(choice.finish_reason != FinishReason::kNone);
    Json item = {{"index", choice.index}};
    if (chat) {
      item["message"] = {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
    } else {
      item["text"] = choice.text;
    }
    item["logprobs"] = LogprobsJson(head.api, choice);
    item["finish_reason"] = FinishReasonJson(choice.finish_reason);
    list.push_back(std::move(item));
  }
  json["choices"] = std::move(list);
  json["usage"] = UsageJson(usage);
  return Dump(json);
}

std::string BuildChunk(const ResponseHead& head, const Choice& delta, bool first, bool with_usage) {
  Json json = HeadJson(head, ChunkObject(head.api));
  Json item = {{"index", delta.index}};
  if (head.api == Api::kChat) {
    Json change = Json::object();
    if (first) change["role"] = "assistant";
    if (first || !delta.text.empty() || delta.finish_reason == FinishReason::kNone) {
      change["content"] = delta.text;
    }
    if (first) change["refusal"] = nullptr;
    item["delta"] = std::move(change);
  } else {
    item["text"] = delta.text;
  }
  item["logprobs"] = LogprobsJson(head.api, delta);
  item["finish_reason"] = FinishReasonJson(delta.finish_reason);
  json["choices"] = Json::array({std::move(item)});
  if (with_usage) json["usage"] = nullptr;
  return Dump(json);
}

TextChunks::TextChunks(const ResponseHead& head, int index, bool with_usage) {
  // Written as an escape, which the head may hold too, but nothing behind the text.
  const Choice mark{.index = index, .text = "\x01", .logprobs = {}, .finish_reason = {}};
  const std::string chunk = BuildChunk(head, mark, /*first=*/false, with_usage);
  const std::string shown = Dump(mark.text);
  const size_t at = chunk.rfind(shown);
  LYNX_CHECK(at != std::string::npos);
  before_ = chunk.substr(0, at);
  after_ = chunk.substr(at + shown.size());
}

std::string TextChunks::Build(const std::string& text) const {
  return absl::StrCat(before_, Dump(text), after_);
}

std::string BuildUsageChunk(const ResponseHead& head, const Usage& usage) {
  Json json = HeadJson(head, ChunkObject(head.api));
  json["choices"] = Json::array();
  json["usage"] = UsageJson(usage);
  return Dump(json);
}

std::string BuildError(const ApiError& error) {
  Json body = {{"message", error.message}, {"type", error.type}};
  body["param"] = error.param.empty() ? Json(nullptr) : Json(error.param);
  body["code"] = error.code.empty() ? Json(nullptr) : Json(error.code);
  return Dump({{"error", std::move(body)}});
}

std::string BuildModel(std::string_view name, int64_t created_s, int32_t max_context_tokens) {
  return Dump(ModelJson(name, created_s, max_context_tokens));
}

std::string BuildModelList(std::span<const std::string> names, int64_t created_s,
                           int32_t max_context_tokens) {
  Json data = Json::array();
  for (const std::string& name : names) {
    data.push_back(ModelJson(name, created_s, max_context_tokens));
  }
  return Dump({{"object", "list"}, {"data", std::move(data)}});
}

std::string BuildTokenizeResponse(std::span<const TokenId> tokens, int32_t max_context_tokens) {
  Json ids = Json::array();
  for (const TokenId id : tokens) ids.push_back(id);
  return Dump({{"count", tokens.size()},
               {"max_model_len", max_context_tokens},
               {"tokens", std::move(ids)}});
}

std::string BuildDetokenizeResponse(std::string_view text) {
  return Dump({{"prompt", std::string(text)}});
}

}  // namespace lynx::router
