#include "services/router/front/api_request.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/ids.h"
#include "common/base/json_shape.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/kv/prefix_hash.h"
#include "common/moe/policy.h"
#include "common/moe/presets.h"
#include "services/router/front/api_error.h"
#include "services/router/front/chat_request.h"
#include "services/router/front/json_fields.h"

namespace lynx::router {
namespace {

absl::StatusOr<Json> ParseObject(std::string_view body) {
  if (!IsValidUtf8(body)) return FieldError("", "The request body is not valid UTF-8");
  if (absl::Status shape = CheckJsonShape(body); !shape.ok()) {
    return FieldError("", absl::StrCat("The request body was refused: ", shape.message()));
  }
  try {
    Json json = Json::parse(body.begin(), body.end());
    if (!json.is_object()) return FieldError("", "The request body must be a JSON object");
    return json;
  } catch (const Json::exception& error) {
    // The library's text quotes what it last read, which is the client's and unbounded.
    const auto* parse_error = dynamic_cast<const Json::parse_error*>(&error);
    return FieldError("", parse_error != nullptr
                              ? absl::StrCat("The request body is not valid JSON: error at byte ",
                                             parse_error->byte)
                              : std::string("The request body is not valid JSON: a number is out "
                                            "of range"));
  }
}

// The value of an integer element, or an error that names `param`.
absl::StatusOr<int64_t> ToInteger(const Json& value, std::string_view param, int64_t min,
                                  int64_t max) {
  if (!value.is_number_integer()) return TypeError(param, "an integer", value);
  const bool past_int64 =
      value.is_number_unsigned() &&
      value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  const int64_t number = past_int64 ? 0 : value.get<int64_t>();
  if (past_int64 || number < min || number > max) {
    return FieldError(param, absl::StrCat("'", std::string(param), "' must be between ", min,
                                          " and ", max, ", but it is ", value.dump()));
  }
  return number;
}

absl::Status ReadInteger(const Json& object, const char* name, int64_t min, int64_t max,
                         std::optional<int64_t>& out) {
  const Json* value = Find(object, name);
  if (value == nullptr) return absl::OkStatus();
  LYNX_ASSIGN_OR_RETURN(out, ToInteger(*value, name, min, max));
  return absl::OkStatus();
}

// `min` itself is allowed only when `open_min` is false.
absl::Status ReadFloat(const Json& object, const char* name, double min, double max, bool open_min,
                       float& out) {
  const Json* value = Find(object, name);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_number()) return TypeError(name, "a number", *value);
  const double number = value->get<double>();
  // As a float, since the nodes get one: a tiny positive top_p must not become 0 on the way.
  const float narrow = static_cast<float>(number);
  if (!(number <= max) || !(open_min ? narrow > static_cast<float>(min) : number >= min)) {
    return FieldError(name, absl::StrCat("'", name, "' must be ", open_min ? "above " : "between ",
                                         min, open_min ? " and at most " : " and ", max,
                                         ", but it is ", value->dump()));
  }
  out = narrow;
  return absl::OkStatus();
}

absl::Status ReadBool(const Json& object, const char* name, bool& out) {
  const Json* value = Find(object, name);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_boolean()) return TypeError(name, "a boolean", *value);
  out = value->get<bool>();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TokenId>> ToTokenIds(const Json& array, const std::string& param,
                                                int32_t vocab_size) {
  std::vector<TokenId> ids;
  ids.reserve(array.size());
  for (size_t i = 0; i < array.size(); ++i) {
    const Json& value = array[i];
    if (!value.is_number()) {
      return TypeError(param, "a list of token ids", value);
    }
    absl::StatusOr<int64_t> id = ToInteger(value, param, 0, vocab_size - 1);
    if (!id.ok()) {
      return FieldError(param, absl::StrCat("'", param, "' has ", value.dump(), " at position ", i,
                                            ", which is not a token id: the vocabulary is 0 to ",
                                            vocab_size - 1));
    }
    ids.push_back(static_cast<TokenId>(*id));
  }
  return ids;
}

// A known field that is not served: refused by name unless it asks for what happens anyway.
struct Unserved {
  const char* name;
  bool (*harmless)(const Json& value);
  bool served_in_chat = false;
};

bool Never(const Json&) { return false; }
bool IfFalse(const Json& value) { return value.is_boolean() && !value.get<bool>(); }
bool IfTrue(const Json& value) { return value.is_boolean() && value.get<bool>(); }
bool IfEmpty(const Json& value) { return value.is_structured() && value.empty(); }
bool IfNone(const Json& value) { return value.is_string() && value == "none"; }
bool IfEmptyString(const Json& value) { return value.is_string() && value == ""; }
bool IfOne(const Json& value) { return value.is_number_integer() && value == 1; }
bool IfMedium(const Json& value) { return value.is_string() && value == "medium"; }
bool IfTextOnly(const Json& value) { return value.is_array() && value == Json::array({"text"}); }
bool IfTextFormat(const Json& value) {
  if (!value.is_object()) return false;
  const auto type = value.find("type");
  return type != value.end() && type->is_string() && *type == "text";
}

// The two APIs share one list: a field that belongs to one of them only is as misleading in the
// other.
constexpr Unserved kUnserved[] = {
    {"tools", IfEmpty, true},
    {"tool_choice", IfNone, true},
    {"parallel_tool_calls", IfTrue},
    {"functions", IfEmpty},
    {"function_call", IfNone},
    {"response_format", IfTextFormat},
    {"suffix", IfEmptyString},
    {"best_of", IfOne},
    {"audio", Never},
    {"modalities", IfTextOnly},
    {"prediction", Never},
    {"web_search_options", Never},
    {"reasoning_effort", IfNone, true},
    {"reasoning", Never},
    {"verbosity", IfMedium},
    {"moderation", Never},
    {"guided_json", Never},
    {"guided_regex", Never},
    {"guided_choice", Never},
    {"guided_grammar", Never},
    {"structural_tag", Never},
    {"structured_outputs", Never},
    {"grammar", Never},
    {"json_schema", Never},
    {"regex", Never},
    {"ebnf", Never},
    {"use_beam_search", IfFalse},
    {"include_stop_str_in_output", IfFalse},
    {"skip_special_tokens", IfTrue},
    {"bad_words", IfEmpty},
    {"allowed_token_ids", Never},
    {"truncate_prompt_tokens", Never},
    {"prompt_logprobs", Never},
    {"prompt_embeds", Never},
    {"return_token_ids", IfFalse},
    {"return_tokens_as_token_ids", IfFalse},
    {"logits_processors", IfEmpty},
    {"logit_processors", IfEmpty},
    {"chat_template", Never},
    {"chat_template_kwargs", IfEmpty, true},
    {"documents", IfEmpty, true},
    {"add_generation_prompt", IfTrue},
    {"continue_final_message", IfFalse},
};

// `served`: one more that this endpoint reads.
absl::Status RefuseUnserved(const Json& body, Api api, std::string_view served = "") {
  for (const Unserved& field : kUnserved) {
    if ((field.served_in_chat && api == Api::kChat) || field.name == served) continue;
    const Json* value = Find(body, field.name);
    if (value != nullptr && !field.harmless(*value)) {
      return FieldError(field.name, absl::StrCat("'", field.name, "' is not supported here"),
                        "unsupported_parameter");
    }
  }
  return absl::OkStatus();
}

// Parameters of expert policies, with the type of their JSON value.
enum class ParameterType { kNumber, kInteger, kIntegerOrNone, kBoolean };
constexpr struct {
  std::string_view key;
  ParameterType type;
} kPolicyParameters[] = {
    {"alpha", ParameterType::kNumber},        {"beta", ParameterType::kIntegerOrNone},
    {"floor", ParameterType::kInteger},       {"self_scaled", ParameterType::kBoolean},
    {"k0", ParameterType::kInteger},          {"M", ParameterType::kInteger},
    {"fraction", ParameterType::kNumber},     {"coverage", ParameterType::kNumber},
    {"row_coverage", ParameterType::kNumber}, {"lambda", ParameterType::kNumber},
    {"ep_balance", ParameterType::kNumber},
};

// The value in the form that moe::MakePolicy reads, nothing for null; `field` names it in errors.
absl::StatusOr<std::optional<std::string>> PolicyParameterText(std::string_view key,
                                                               const std::string& field,
                                                               const Json& value) {
  const auto* const known =
      std::find_if(std::begin(kPolicyParameters), std::end(kPolicyParameters),
                   [&](const auto& parameter) { return parameter.key == key; });
  if (known == std::end(kPolicyParameters)) {
    return FieldError(field, absl::StrCat("'", field, "' is not known: no policy has it"));
  }
  if (value.is_null()) return std::nullopt;
  switch (known->type) {
    case ParameterType::kNumber:
      if (!value.is_number()) return TypeError(field, "a number", value);
      break;
    case ParameterType::kInteger:
      if (!value.is_number_integer()) return TypeError(field, "an integer", value);
      break;
    case ParameterType::kIntegerOrNone:
      if (value == "none") return std::string("none");
      if (!value.is_number_integer()) return TypeError(field, "an integer or \"none\"", value);
      break;
    case ParameterType::kBoolean:
      if (!value.is_boolean()) return TypeError(field, "a boolean", value);
      break;
  }
  return value.dump();
}

// How decode may remap experts for this request: {"policy": name, its parameters}.
absl::Status ReadLynx(const Json& body, const RequestLimits& limits, ApiRequest& out) {
  const Json* lynx = Find(body, "lynx");
  if (lynx == nullptr) return absl::OkStatus();
  if (!lynx->is_object()) return TypeError("lynx", "an object", *lynx);
  std::vector<std::pair<std::string, std::string>> parameters;
  for (const auto& [key, value] : lynx->items()) {
    if (key == "policy") continue;
    // The key is the client's text: bounded, and cut so that no character is left in halves.
    const std::string field = absl::StrCat("lynx.", ReplaceInvalidUtf8(key.substr(0, 40)));
    LYNX_ASSIGN_OR_RETURN(std::optional<std::string> text, PolicyParameterText(key, field, value));
    if (text.has_value()) parameters.emplace_back(key, *std::move(text));
  }
  const Json* policy_name = Find(*lynx, "policy");
  if (policy_name == nullptr) {
    if (parameters.empty()) return absl::OkStatus();
    return FieldError("lynx.policy", "'lynx.policy' is required next to its parameters");
  }
  if (!policy_name->is_string()) return TypeError("lynx.policy", "a string", *policy_name);
  const std::string& name = policy_name->get_ref<const std::string&>();
  const auto& allowed = limits.policies;
  if (name != "exact" && std::find(allowed.begin(), allowed.end(), name) == allowed.end()) {
    return FieldError(
        "lynx.policy",
        absl::StrCat("'lynx.policy' must be exact", allowed.empty() ? "" : " or one of ",
                     absl::StrJoin(allowed, ", "), ": this server allows no other, but it is '",
                     ReplaceInvalidUtf8(name.substr(0, 40)), "'"),
        "unsupported_parameter");
  }
  absl::StatusOr<moe::Policy> policy = moe::MakePolicy(name, parameters);
  absl::Status checked = policy.status();
  if (checked.ok() && policy->lossy()) {
    if (limits.experts == 0) {
      return FieldError("lynx.policy",
                        "'lynx.policy' must be exact: this model has no experts to remap");
    }
    // What is left out is the model's preset, which always fits; the nodes know which it is.
    const moe::ModelFacts facts{.experts = limits.experts, .top_k = limits.experts_per_token};
    checked = moe::CheckPolicy(moe::WithPreset(*policy, facts), facts.experts, facts.top_k);
  }
  if (!checked.ok()) {
    const std::string parameter = moe::ParameterOf(checked);
    const std::string field = parameter.empty() ? "lynx" : absl::StrCat("lynx.", parameter);
    return FieldError(field, absl::StrCat("'", field, "' was refused: ", checked.message()));
  }
  out.sampling.set_policy(moe::ToString(*policy));
  return absl::OkStatus();
}

absl::Status ReadCacheSalt(const Json& body, ApiRequest& out) {
  const Json* value = Find(body, "cache_salt");
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_string()) return TypeError("cache_salt", "a string", *value);
  const std::string& salt = value->get_ref<const std::string&>();
  if (salt.empty() || salt.size() > kv::kMaxSaltBytes) {
    return FieldError("cache_salt", absl::StrCat("'cache_salt' must have 1 to ", kv::kMaxSaltBytes,
                                                 " bytes, but it has ", salt.size()));
  }
  out.cache_salt = salt;
  return absl::OkStatus();
}

// Whose request it is and how soon it is wanted, as vLLM has it: lower is earlier. Nobody gets
// ahead of those who say nothing, so that clients need not be trusted with it.
absl::Status ReadClaim(const Json& body, ApiRequest& out) {
  std::optional<int64_t> priority;
  LYNX_RETURN_IF_ERROR(ReadInteger(body, "priority", 0, 1000, priority));
  out.priority = static_cast<int32_t>(priority.value_or(0));
  for (const char* name : {"user", "safety_identifier"}) {
    const Json* value = Find(body, name);
    if (value != nullptr && value->is_string()) out.end_user = value->get<std::string>();
  }
  return absl::OkStatus();
}

absl::Status ReadModel(const Json& body, const RequestLimits& limits, std::string& out) {
  const Json* value = Find(body, "model");
  if (value == nullptr) return FieldError("model", "'model' is required");
  if (!value->is_string()) return TypeError("model", "a string", *value);
  out = value->get<std::string>();
  const auto& names = limits.model_names;
  if (std::find(names.begin(), names.end(), out) == names.end()) return UnknownModelError(out);
  return absl::OkStatus();
}

absl::Status ReadPrompts(const Json& body, const RequestLimits& limits, ApiRequest& out) {
  const Json* value = Find(body, "prompt");
  if (value == nullptr) return FieldError("prompt", "'prompt' is required");
  if (value->is_string()) {
    out.prompts.emplace_back(value->get<std::string>());
  } else if (!value->is_array()) {
    return TypeError("prompt", "a string, a list of strings, token ids or a list of token id lists",
                     *value);
  } else if (value->empty()) {
    return FieldError("prompt", "'prompt' must not be empty");
  } else if ((*value)[0].is_number()) {
    LYNX_ASSIGN_OR_RETURN(auto ids, ToTokenIds(*value, "prompt", limits.vocab_size));
    out.prompts.emplace_back(std::move(ids));
  } else {
    for (const Json& item : *value) {
      if (item.type() != (*value)[0].type()) {
        return FieldError("prompt", "'prompt' mixes different kinds of prompt in one list");
      }
      if (item.is_string()) {
        out.prompts.emplace_back(item.get<std::string>());
      } else if (item.is_array()) {
        LYNX_ASSIGN_OR_RETURN(auto ids, ToTokenIds(item, "prompt", limits.vocab_size));
        out.prompts.emplace_back(std::move(ids));
      } else {
        return TypeError("prompt", "a list of strings, token ids or token id lists", item);
      }
    }
  }
  for (const Prompt& prompt : out.prompts) {
    if (std::visit([](const auto& content) { return content.empty(); }, prompt)) {
      return FieldError("prompt", "'prompt' must not be empty");
    }
  }
  return absl::OkStatus();
}

absl::Status ReadStops(const Json& body, const RequestLimits& limits, ApiRequest& out) {
  if (const Json* value = Find(body, "stop"); value != nullptr) {
    const Json list = value->is_string() ? Json::array({*value}) : *value;
    if (!list.is_array()) return TypeError("stop", "a string or a list of strings", list);
    if (list.size() > static_cast<size_t>(limits.max_stop_strings)) {
      return FieldError("stop", absl::StrCat("'stop' has ", list.size(), " strings; at most ",
                                             limits.max_stop_strings, " are allowed"));
    }
    for (const Json& item : list) {
      if (!item.is_string()) return TypeError("stop", "a string or a list of strings", item);
      const std::string& text = item.get_ref<const std::string&>();
      if (text.empty()) return FieldError("stop", "'stop' must not hold an empty string");
      if (text.size() > static_cast<size_t>(limits.max_stop_string_bytes)) {
        return FieldError("stop",
                          absl::StrCat("'stop' has a string of ", text.size(), " bytes; at most ",
                                       limits.max_stop_string_bytes, " are allowed"));
      }
      out.stop.push_back(text);
    }
  }
  bool ignore_eos = false;
  LYNX_RETURN_IF_ERROR(ReadBool(body, "ignore_eos", ignore_eos));
  std::vector<TokenId> stop_ids;
  if (!ignore_eos) stop_ids = limits.end_token_ids;
  if (const Json* value = Find(body, "stop_token_ids"); value != nullptr) {
    if (!value->is_array()) return TypeError("stop_token_ids", "a list of token ids", *value);
    if (value->size() > static_cast<size_t>(limits.max_stop_token_ids)) {
      return FieldError("stop_token_ids",
                        absl::StrCat("'stop_token_ids' has ", value->size(), " ids; at most ",
                                     limits.max_stop_token_ids, " are allowed"));
    }
    LYNX_ASSIGN_OR_RETURN(auto ids, ToTokenIds(*value, "stop_token_ids", limits.vocab_size));
    stop_ids.insert(stop_ids.end(), ids.begin(), ids.end());
  }
  std::sort(stop_ids.begin(), stop_ids.end());
  stop_ids.erase(std::unique(stop_ids.begin(), stop_ids.end()), stop_ids.end());
  out.sampling.mutable_stop_token_ids()->Assign(stop_ids.begin(), stop_ids.end());
  return absl::OkStatus();
}

absl::Status ReadLogitBias(const Json& body, const RequestLimits& limits, ApiRequest& out) {
  const Json* value = Find(body, "logit_bias");
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_object()) return TypeError("logit_bias", "an object", *value);
  std::map<TokenId, float> biases;  // Ordered, so that equal requests are equal on the wire.
  for (const auto& [key, bias] : value->items()) {
    int32_t id = -1;
    // Only the canonical spelling: two keys must not name one token.
    if (!absl::SimpleAtoi(key, &id) || id < 0 || id >= limits.vocab_size ||
        absl::StrCat(id) != key) {
      return FieldError("logit_bias", absl::StrCat("'logit_bias' has the key '", key.substr(0, 32),
                                                   "', which is not a token id: the vocabulary is "
                                                   "0 to ",
                                                   limits.vocab_size - 1));
    }
    if (!bias.is_number()) return TypeError("logit_bias", "a map of token ids to numbers", bias);
    const double number = bias.get<double>();
    if (!(number >= -100 && number <= 100)) {
      return FieldError("logit_bias",
                        absl::StrCat("'logit_bias' of token ", key,
                                     " must be between -100 and 100, but it is ", bias.dump()));
    }
    biases[id] = static_cast<float>(number);
  }
  for (const auto& [id, bias] : biases) {
    proto::LogitBias* entry = out.sampling.add_logit_bias();
    entry->set_token(id);
    entry->set_bias(bias);
  }
  return absl::OkStatus();
}

absl::Status ReadSampling(const Json& body, const RequestLimits& limits, ApiRequest& out) {
  float temperature = limits.temperature;
  float top_p = limits.top_p;
  float min_p = limits.min_p;
  float presence = 0;
  float frequency = 0;
  float repetition = limits.repetition_penalty;
  LYNX_RETURN_IF_ERROR(ReadFloat(body, "temperature", 0, 2, false, temperature));
  LYNX_RETURN_IF_ERROR(ReadFloat(body, "top_p", 0, 1, true, top_p));
  LYNX_RETURN_IF_ERROR(ReadFloat(body, "min_p", 0, 1, false, min_p));
  LYNX_RETURN_IF_ERROR(ReadFloat(body, "presence_penalty", -2, 2, false, presence));
  LYNX_RETURN_IF_ERROR(ReadFloat(body, "frequency_penalty", -2, 2, false, frequency));
  LYNX_RETURN_IF_ERROR(ReadFloat(body, "repetition_penalty", 0, 10, true, repetition));
  std::optional<int64_t> top_k;
  LYNX_RETURN_IF_ERROR(ReadInteger(body, "top_k", -1, std::numeric_limits<int32_t>::max(), top_k));
  std::optional<int64_t> seed;
  LYNX_RETURN_IF_ERROR(ReadInteger(body, "seed", std::numeric_limits<int64_t>::min(),
                                   std::numeric_limits<int64_t>::max(), seed));

  proto::SamplingParams& sampling = out.sampling;
  sampling.set_temperature(temperature);
  sampling.set_top_p(top_p);
  sampling.set_min_p(min_p);
  sampling.set_presence_penalty(presence);
  sampling.set_frequency_penalty(frequency);
  sampling.set_repetition_penalty(repetition);
  // "All" has three spellings, -1, 0 and the whole vocabulary; the nodes see one.
  const int64_t k = top_k.value_or(limits.top_k);
  sampling.set_top_k(k <= 0 || k >= limits.vocab_size ? 0 : static_cast<int32_t>(k));
  sampling.set_seed(seed.has_value() ? static_cast<uint64_t>(*seed) : RandomId());
  LYNX_RETURN_IF_ERROR(ReadLogitBias(body, limits, out));
  return ReadStops(body, limits, out);
}

absl::Status ReadLengths(const Json& body, ApiRequest& out) {
  constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
  std::optional<int64_t> max_tokens;
  std::optional<int64_t> max_completion_tokens;
  const int64_t least = out.echo ? 0 : 1;
  LYNX_RETURN_IF_ERROR(ReadInteger(body, "max_tokens", least, kAny, max_tokens));
  LYNX_RETURN_IF_ERROR(
      ReadInteger(body, "max_completion_tokens", least, kAny, max_completion_tokens));
  if (max_tokens.has_value() && max_completion_tokens.has_value() &&
      *max_tokens != *max_completion_tokens) {
    return FieldError("max_tokens",
                      "'max_tokens' and 'max_completion_tokens' are two names of one limit and "
                      "must not differ");
  }
  const std::optional<int64_t> limit = max_tokens.has_value() ? max_tokens : max_completion_tokens;
  if (limit.has_value()) {
    // What is past int32 is past every context too, which MaxNewTokens then says.
    out.max_tokens =
        static_cast<int32_t>(std::min<int64_t>(*limit, std::numeric_limits<int32_t>::max()));
  }
  std::optional<int64_t> min_tokens;
  LYNX_RETURN_IF_ERROR(
      ReadInteger(body, "min_tokens", 0, std::numeric_limits<int32_t>::max(), min_tokens));
  if (min_tokens.has_value() && out.max_tokens.has_value() && *min_tokens > *out.max_tokens) {
    return FieldError("min_tokens",
                      absl::StrCat("'min_tokens' is ", *min_tokens, ", more than the ",
                                   *out.max_tokens, " tokens allowed"));
  }
  out.sampling.set_min_new_tokens(static_cast<int32_t>(min_tokens.value_or(0)));
  return absl::OkStatus();
}

absl::Status ReadLogprobs(const Json& body, const RequestLimits& limits, ApiRequest& out) {
  if (out.api == Api::kCompletions) {
    std::optional<int64_t> logprobs;
    LYNX_RETURN_IF_ERROR(ReadInteger(body, "logprobs", 0, limits.max_logprobs, logprobs));
    if (logprobs.has_value()) out.logprobs = static_cast<int>(*logprobs);
  } else {
    bool logprobs = false;
    std::optional<int64_t> top;
    LYNX_RETURN_IF_ERROR(ReadBool(body, "logprobs", logprobs));
    LYNX_RETURN_IF_ERROR(ReadInteger(body, "top_logprobs", 0, limits.max_logprobs, top));
    if (top.value_or(0) > 0 && !logprobs) {
      return FieldError("top_logprobs", "'top_logprobs' needs 'logprobs' to be true");
    }
    if (logprobs) out.logprobs = static_cast<int>(top.value_or(0));
  }
  out.sampling.set_top_logprobs(out.logprobs.value_or(-1));
  out.sampling.set_prompt_logprobs(out.echo && out.logprobs.has_value());
  return absl::OkStatus();
}

absl::Status ReadStreaming(const Json& body, ApiRequest& out) {
  LYNX_RETURN_IF_ERROR(ReadClaim(body, out));
  LYNX_RETURN_IF_ERROR(ReadBool(body, "stream", out.stream));
  const Json* options = Find(body, "stream_options");
  if (options == nullptr) return absl::OkStatus();
  if (!options->is_object()) return TypeError("stream_options", "an object", *options);
  if (!out.stream) {
    return FieldError("stream_options", "'stream_options' is allowed only when 'stream' is true");
  }
  if (const Json* value = Find(*options, "include_usage"); value != nullptr) {
    if (!value->is_boolean()) return TypeError("stream_options.include_usage", "a boolean", *value);
    out.include_usage = value->get<bool>();
  }
  if (const Json* value = Find(*options, "continuous_usage_stats");
      value != nullptr && !IfFalse(*value)) {
    return FieldError("stream_options.continuous_usage_stats",
                      "'stream_options.continuous_usage_stats' is not supported here",
                      "unsupported_parameter");
  }
  return absl::OkStatus();
}

// Everything the two APIs have in common.
absl::Status ReadCommon(const Json& body, const RequestLimits& limits, ApiRequest& out) {
  LYNX_RETURN_IF_ERROR(RefuseUnserved(body, out.api));
  LYNX_RETURN_IF_ERROR(ReadLynx(body, limits, out));
  LYNX_RETURN_IF_ERROR(ReadCacheSalt(body, out));
  LYNX_RETURN_IF_ERROR(ReadBool(body, "echo", out.echo));
  if (out.echo && out.api == Api::kChat) {
    return FieldError("echo", "'echo' is not supported in chat", "unsupported_parameter");
  }
  bool add_special_tokens = out.api == Api::kCompletions;
  const bool usual = add_special_tokens;
  LYNX_RETURN_IF_ERROR(ReadBool(body, "add_special_tokens", add_special_tokens));
  if (add_special_tokens != usual) {
    return FieldError("add_special_tokens", "'add_special_tokens' is not supported here",
                      "unsupported_parameter");
  }
  std::optional<int64_t> n;
  LYNX_RETURN_IF_ERROR(ReadInteger(body, "n", 1, limits.max_choices, n));
  out.n = static_cast<int>(n.value_or(1));
  if (Find(body, "best_of") != nullptr && out.n > 1) {
    return FieldError("best_of", "'best_of' must not be less than 'n'");
  }
  LYNX_RETURN_IF_ERROR(ReadStreaming(body, out));
  LYNX_RETURN_IF_ERROR(ReadLengths(body, out));
  LYNX_RETURN_IF_ERROR(ReadLogprobs(body, limits, out));
  return ReadSampling(body, limits, out);
}

absl::Status ReadCompletion(const Json& json, const RequestLimits& limits, ApiRequest& request) {
  LYNX_RETURN_IF_ERROR(ReadPrompts(json, limits, request));
  LYNX_RETURN_IF_ERROR(ReadCommon(json, limits, request));
  if (request.prompts.size() * static_cast<size_t>(request.n) >
      static_cast<size_t>(limits.max_choices)) {
    return FieldError("prompt", absl::StrCat(request.prompts.size(), " prompts times n = ",
                                             request.n, " is over the limit of ",
                                             limits.max_choices, " choices per request"));
  }
  return absl::OkStatus();
}

absl::Status ReadChat(const Json& json, std::string_view body, const RequestLimits& limits,
                      ApiRequest& request) {
  LYNX_ASSIGN_OR_RETURN(request.chat, ReadChatInput(json, body, limits));
  return ReadCommon(json, limits, request);
}

}  // namespace

absl::StatusOr<ApiRequest> ParseCompletionRequest(std::string_view body,
                                                  const RequestLimits& limits) {
  LYNX_ASSIGN_OR_RETURN(const Json json, ParseObject(body));
  ApiRequest request;
  request.api = Api::kCompletions;
  LYNX_RETURN_IF_ERROR(ReadModel(json, limits, request.model));
  absl::Status read = ReadCompletion(json, limits, request);
  if (!read.ok()) return ForModel(std::move(read), request.model);
  return request;
}

absl::StatusOr<ApiRequest> ParseChatRequest(std::string_view body, const RequestLimits& limits) {
  LYNX_ASSIGN_OR_RETURN(const Json json, ParseObject(body));
  ApiRequest request;
  request.api = Api::kChat;
  LYNX_RETURN_IF_ERROR(ReadModel(json, limits, request.model));
  absl::Status read = ReadChat(json, body, limits, request);
  if (!read.ok()) return ForModel(std::move(read), request.model);
  return request;
}

absl::StatusOr<int32_t> MaxNewTokens(const ApiRequest& request, int64_t prompt_tokens,
                                     const RequestLimits& limits) {
  constexpr char kCode[] = "context_length_exceeded";
  const char* prompt = request.api == Api::kChat ? "messages" : "prompt";
  const int64_t context = limits.max_context_tokens;
  const int64_t wanted = request.max_tokens.value_or(1);
  if (prompt_tokens + wanted <= context) {
    const auto room = static_cast<int32_t>(context - prompt_tokens);
    const int32_t max_new_tokens = request.max_tokens.value_or(room);
    if (request.sampling.min_new_tokens() > max_new_tokens) {
      return FieldError("min_tokens",
                        absl::StrCat("'min_tokens' is ", request.sampling.min_new_tokens(),
                                     ", but there is room for ", room, " tokens"));
    }
    return max_new_tokens;
  }
  if (prompt_tokens + 1 > context) {
    return FieldError(
        prompt,
        absl::StrCat("This model's maximum context length is ", context, " tokens, but '", prompt,
                     "' has ", prompt_tokens, " tokens, which leaves no room for an answer"),
        kCode);
  }
  return FieldError(
      "max_tokens",
      absl::StrCat("This model's maximum context length is ", context, " tokens, but ",
                   prompt_tokens + wanted, " were requested: ", prompt_tokens, " in '", prompt,
                   "' and ", wanted, " for the answer"),
      kCode);
}

absl::StatusOr<TokenizeRequest> ParseTokenizeRequest(std::string_view body,
                                                     const RequestLimits& limits) {
  LYNX_ASSIGN_OR_RETURN(const Json json, ParseObject(body));
  if (Find(json, "model") != nullptr) {
    std::string model;
    LYNX_RETURN_IF_ERROR(ReadModel(json, limits, model));
  }
  TokenizeRequest request;
  const Json* prompt = Find(json, "prompt");
  if (prompt != nullptr && Find(json, "messages") != nullptr) {
    return FieldError("prompt", "'prompt' and 'messages' must not both be given");
  }
  if (prompt != nullptr) {
    if (!prompt->is_string()) return TypeError("prompt", "a string", *prompt);
    request.input = prompt->get<std::string>();
  } else if (Find(json, "messages") != nullptr) {
    LYNX_RETURN_IF_ERROR(RefuseUnserved(json, Api::kChat, "add_generation_prompt"));
    LYNX_ASSIGN_OR_RETURN(text::ChatInput chat, ReadChatInput(json, body, limits));
    LYNX_RETURN_IF_ERROR(ReadBool(json, "add_generation_prompt", chat.add_generation_prompt));
    request.input = std::move(chat);
    request.add_special_tokens = false;  // The template writes its own.
  } else {
    return FieldError("prompt", "'prompt' or 'messages' is required");
  }
  LYNX_RETURN_IF_ERROR(ReadBool(json, "add_special_tokens", request.add_special_tokens));
  return request;
}

absl::StatusOr<DetokenizeRequest> ParseDetokenizeRequest(std::string_view body,
                                                         const RequestLimits& limits) {
  LYNX_ASSIGN_OR_RETURN(const Json json, ParseObject(body));
  if (Find(json, "model") != nullptr) {
    std::string model;
    LYNX_RETURN_IF_ERROR(ReadModel(json, limits, model));
  }
  const Json* tokens = Find(json, "tokens");
  if (tokens == nullptr) return FieldError("tokens", "'tokens' is required");
  if (!tokens->is_array()) return TypeError("tokens", "a list of token ids", *tokens);
  DetokenizeRequest request;
  LYNX_ASSIGN_OR_RETURN(request.tokens, ToTokenIds(*tokens, "tokens", limits.vocab_size));
  return request;
}

}  // namespace lynx::router
