#include "services/router/front/chat_request.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/json_shape.h"
#include "common/base/status_macros.h"
#include "services/router/front/api_error.h"

namespace lynx::router {
namespace {

constexpr size_t kMaxNameBytes = 256;
// What arguments are put into is nested, too.
constexpr int kMaxArgumentsDepth = kMaxJsonDepth - 8;

// What is left of the JSON that a request may hand to its template, which keeps each value as an
// object of its own.
class Budget {
 public:
  explicit Budget(const RequestLimits& limits) : left_(limits.max_template_values) {}

  absl::Status Take(std::string_view json, const std::string& param) {
    // No fewer than there are; marks inside strings count, too.
    left_ -= 1 + std::count_if(json.begin(), json.end(),
                               [](char c) { return c == ',' || c == '[' || c == '{'; });
    if (left_ >= 0) return absl::OkStatus();
    return FieldError(param, absl::StrCat("'", param,
                                          "' is too large: the messages and tools of a "
                                          "request have too many values"));
  }

 private:
  int64_t left_;
};

absl::Status Unsupported(const std::string& param) {
  return FieldError(param, absl::StrCat("'", param, "' is not supported here"),
                    "unsupported_parameter");
}

// A string that is short; `object` has it or not.
absl::Status CheckName(const Json& object, const char* name, const std::string& at, bool required) {
  const std::string param = absl::StrCat(at, ".", name);
  const Json* value = Find(object, name);
  if (value == nullptr) {
    if (!required) return absl::OkStatus();
    return FieldError(param, absl::StrCat("'", param, "' is required"));
  }
  if (!value->is_string()) return TypeError(param, "a string", *value);
  const size_t size = value->get_ref<const std::string&>().size();
  if (size > kMaxNameBytes || (required && size == 0)) {
    return FieldError(param, absl::StrCat("'", param, "' must have 1 to ", kMaxNameBytes,
                                          " bytes, but it has ", size));
  }
  return absl::OkStatus();
}

// {"type": "function", "function": {"name": ...}}: a tool, or a call of one. The function.
absl::StatusOr<const Json*> CheckFunction(const Json& item, const std::string& at) {
  if (!item.is_object()) return TypeError(at, "an object", item);
  if (const Json* type = Find(item, "type"); type != nullptr && *type != "function") {
    if (!type->is_string()) return TypeError(at + ".type", "a string", *type);
    return FieldError(
        at + ".type",
        absl::StrCat("'", at, "' has type '", type->get_ref<const std::string&>().substr(0, 64),
                     "', which is not supported: only 'function' is"),
        "unsupported_parameter");
  }
  const Json* function = Find(item, "function");
  const std::string param = at + ".function";
  if (function == nullptr) return FieldError(param, absl::StrCat("'", param, "' is required"));
  if (!function->is_object()) return TypeError(param, "an object", *function);
  LYNX_RETURN_IF_ERROR(CheckName(*function, "name", param, /*required=*/true));
  return function;
}

// The list `list`, of at most `max` elements.
absl::Status CheckList(const Json& list, const std::string& param, int max) {
  if (!list.is_array()) return TypeError(param, "a list", list);
  if (list.size() <= static_cast<size_t>(max)) return absl::OkStatus();
  return FieldError(param, absl::StrCat("'", param, "' has ", list.size(), " elements; at most ",
                                        max, " are allowed"));
}

// Text parts joined.
absl::StatusOr<std::string> ReadContent(const Json& content, const std::string& param) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return TypeError(param, "a string or a list of text parts", content);
  if (content.empty()) return FieldError(param, absl::StrCat("'", param, "' must not be empty"));
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const Json& part = content[i];
    const std::string part_param = absl::StrCat(param, "[", i, "]");
    if (!part.is_object()) return TypeError(part_param, "an object", part);
    const Json* type = Find(part, "type");
    if (type == nullptr || !type->is_string()) {
      return FieldError(part_param + ".type",
                        absl::StrCat("'", part_param, ".type' is required and must be a string"));
    }
    if (*type != "text") {
      return FieldError(part_param + ".type",
                        absl::StrCat("'", part_param, "' has type '",
                                     type->get_ref<const std::string&>().substr(0, 64),
                                     "', which is not supported: only 'text' is"),
                        "unsupported_content_type");
    }
    const Json* part_text = Find(part, "text");
    if (part_text == nullptr || !part_text->is_string()) {
      return FieldError(part_param + ".text",
                        absl::StrCat("'", part_param, ".text' is required and must be a string"));
    }
    // A line break between parts, as if the client had written them one below the other.
    if (i > 0) text += '\n';
    text += part_text->get_ref<const std::string&>();
  }
  return text;
}

// The arguments of a call as the template gets them: JSON text.
absl::StatusOr<std::string> ReadArguments(const Json& function, std::string_view raw,
                                          const std::string& param, bool as_text) {
  const Json* value = Find(function, "arguments");
  std::string object = "{}";  // Of a call without any.
  if (value != nullptr && value->is_object()) {
    object = std::string(raw);
  } else if (value != nullptr) {
    if (!value->is_string()) return TypeError(param, "a string or an object", *value);
    const std::string& text = value->get_ref<const std::string&>();
    if (!text.empty()) object = text;
    if (absl::Status shape = CheckJsonShape(object, kMaxArgumentsDepth); !shape.ok()) {
      return FieldError(param, absl::StrCat("'", param, "' was refused: ", shape.message()));
    }
    const size_t begin = object.find_first_not_of(" \n\r\t");
    if (begin == std::string::npos || object[begin] != '{' || !Json::accept(object)) {
      return FieldError(param, absl::StrCat("'", param, "' must be the text of a JSON object"));
    }
  }
  return as_text ? Json(object).dump() : object;
}

void AppendMember(std::string_view name, std::string_view json, std::string& object) {
  absl::StrAppend(&object, object.empty() ? "{" : ",", Json(name).dump(), ":", std::string(json));
}

std::string Closed(std::string object) { return object.empty() ? object : object + "}"; }

// A call as it was written, but for its arguments.
absl::StatusOr<std::string> ReadCall(const Json& call, std::string_view raw, const std::string& at,
                                     bool as_text, Budget& budget) {
  LYNX_ASSIGN_OR_RETURN(const Json* function, CheckFunction(call, at));
  LYNX_RETURN_IF_ERROR(CheckName(call, "id", at, /*required=*/false));
  const std::string_view raw_function = RawValue(raw, "function");
  LYNX_ASSIGN_OR_RETURN(const std::string arguments,
                        ReadArguments(*function, RawValue(raw_function, "arguments"),
                                      at + ".function.arguments", as_text));
  std::string function_out;
  for (const RawMember& member : RawMembers(raw_function)) {
    if (member.name != "arguments") AppendMember(member.name, member.value, function_out);
  }
  AppendMember("arguments", arguments, function_out);
  function_out = Closed(std::move(function_out));
  std::string out;
  for (const RawMember& member : RawMembers(raw)) {
    AppendMember(member.name, member.name == "function" ? function_out : member.value, out);
  }
  out = Closed(std::move(out));
  LYNX_RETURN_IF_ERROR(budget.Take(out, at));
  return out;
}

// `raw` is the list as it was written.
absl::StatusOr<std::string> ReadCalls(const Json& calls, std::string_view raw,
                                      const std::string& param, const RequestLimits& limits,
                                      Budget& budget) {
  LYNX_RETURN_IF_ERROR(CheckList(calls, param, limits.max_tool_calls));
  const std::vector<std::string_view> elements = RawElements(raw);
  std::string out = "[";
  for (size_t i = 0; i < calls.size(); ++i) {
    LYNX_ASSIGN_OR_RETURN(const std::string call,
                          ReadCall(calls[i], elements[i], absl::StrCat(param, "[", i, "]"),
                                   limits.tool_arguments_as_text, budget));
    absl::StrAppend(&out, i > 0 ? "," : "", call);
  }
  return out + "]";
}

bool IsNothing(const Json* value) {
  return value == nullptr || (value->is_structured() && value->empty());
}

absl::Status ReadRole(const Json& item, const std::string& at, std::string& role) {
  const Json* value = Find(item, "role");
  if (value == nullptr || !value->is_string()) {
    return FieldError(at + ".role",
                      absl::StrCat("'", at, ".role' is required and must be a string"));
  }
  role = value->get<std::string>();
  if (role == "developer") role = "system";  // OpenAI's newer name of it.
  if (role != "system" && role != "user" && role != "assistant" && role != "tool") {
    return FieldError(at + ".role", absl::StrCat("'", at,
                                                 ".role' must be system, developer, "
                                                 "user, assistant or tool"));
  }
  return absl::OkStatus();
}

absl::StatusOr<text::ChatMessage> ReadMessage(const Json& item, std::string_view raw,
                                              const std::string& at, const RequestLimits& limits,
                                              Budget& budget) {
  if (!item.is_object()) return TypeError(at, "an object", item);
  text::ChatMessage message;
  LYNX_RETURN_IF_ERROR(ReadRole(item, at, message.role));
  for (const char* unserved : {"function_call", "audio", "refusal"}) {
    if (!IsNothing(Find(item, unserved))) return Unsupported(absl::StrCat(at, ".", unserved));
  }
  for (const char* name : {"name", "tool_call_id"}) {
    LYNX_RETURN_IF_ERROR(CheckName(item, name, at, /*required=*/false));
    if (const Json* value = Find(item, name); value != nullptr) {
      AppendMember(name, value->dump(), message.extra_json);
    }
  }
  const Json* calls = Find(item, "tool_calls");
  if (!IsNothing(calls)) {
    const std::string param = at + ".tool_calls";
    if (message.role != "assistant") {
      return FieldError(param, absl::StrCat("'", param, "' is allowed in assistant messages only"));
    }
    LYNX_ASSIGN_OR_RETURN(const std::string json,
                          ReadCalls(*calls, RawValue(raw, "tool_calls"), param, limits, budget));
    AppendMember("tool_calls", json, message.extra_json);
  }
  bool has_reasoning = false;
  for (const char* name : {"reasoning_content", "reasoning", "thinking"}) {
    const Json* value = Find(item, name);
    if (value != nullptr && !value->is_string()) {
      return TypeError(absl::StrCat(at, ".", name), "a string", *value);
    }
    // The newer and the older name of one thing: a client uses one, a template reads the other.
    if (value == nullptr && name == std::string_view("reasoning_content")) {
      value = Find(item, "reasoning");
    } else if (value == nullptr && name == std::string_view("reasoning")) {
      value = Find(item, "reasoning_content");
    }
    if (value == nullptr) continue;
    has_reasoning = true;
    AppendMember(name, value->dump(), message.extra_json);
  }
  message.extra_json = Closed(std::move(message.extra_json));
  const Json* content = Find(item, "content");
  if (content != nullptr) {
    LYNX_ASSIGN_OR_RETURN(message.content, ReadContent(*content, at + ".content"));
  } else if (IsNothing(calls) && !(has_reasoning && message.role == "assistant")) {
    return FieldError(at + ".content",
                      absl::StrCat("'", at, ".content' is required and must not be null"));
  }
  return message;
}

absl::StatusOr<std::vector<text::ChatMessage>> ReadMessages(const Json& body, std::string_view text,
                                                            const RequestLimits& limits,
                                                            Budget& budget) {
  const Json* value = Find(body, "messages");
  if (value == nullptr) return FieldError("messages", "'messages' is required");
  if (!value->is_array()) return TypeError("messages", "a list", *value);
  if (value->empty()) return FieldError("messages", "'messages' must not be empty");
  const std::vector<std::string_view> raw = RawElements(RawValue(text, "messages"));
  std::vector<text::ChatMessage> messages;
  messages.reserve(value->size());
  for (size_t i = 0; i < value->size(); ++i) {
    LYNX_ASSIGN_OR_RETURN(
        text::ChatMessage message,
        ReadMessage((*value)[i], raw[i], absl::StrCat("messages[", i, "]"), limits, budget));
    messages.push_back(std::move(message));
  }
  return messages;
}

// Empty: none, or the model may not use them.
absl::StatusOr<std::string> ReadTools(const Json& body, std::string_view text,
                                      const RequestLimits& limits, Budget& budget) {
  const Json* tools = Find(body, "tools");
  const Json* choice = Find(body, "tool_choice");
  if (tools != nullptr) {
    LYNX_RETURN_IF_ERROR(CheckList(*tools, "tools", limits.max_tools));
    for (size_t i = 0; i < tools->size(); ++i) {
      const std::string at = absl::StrCat("tools[", i, "]");
      LYNX_ASSIGN_OR_RETURN(const Json* function, CheckFunction((*tools)[i], at));
      const Json* parameters = Find(*function, "parameters");
      if (parameters != nullptr && !parameters->is_object()) {
        return TypeError(at + ".function.parameters", "an object", *parameters);
      }
    }
  }
  const bool none = choice != nullptr && *choice == "none";
  if (choice != nullptr && !none) {
    // The others promise a call, which nothing here makes the model do.
    if (*choice != "auto") return Unsupported("tool_choice");
    if (IsNothing(tools)) {
      return FieldError("tool_choice", "'tool_choice' is allowed only when 'tools' are given");
    }
  }
  if (none || IsNothing(tools)) return std::string();
  const std::string_view raw = RawValue(text, "tools");
  LYNX_RETURN_IF_ERROR(budget.Take(raw, "tools"));
  return std::string(raw);
}

absl::StatusOr<std::string> ReadVariables(const Json& body, std::string_view text,
                                          const RequestLimits& limits, Budget& budget) {
  std::string out;
  if (const Json* kwargs = Find(body, "chat_template_kwargs"); kwargs != nullptr) {
    constexpr char kParam[] = "chat_template_kwargs";
    if (!kwargs->is_object()) return TypeError(kParam, "an object", *kwargs);
    for (const char* reserved : {"messages", "tools", "documents", "add_generation_prompt",
                                 "continue_final_message", "chat_template", "tokenize"}) {
      if (kwargs->contains(reserved)) return Unsupported(absl::StrCat(kParam, ".", reserved));
    }
    const std::string_view raw = RawValue(text, kParam);
    LYNX_RETURN_IF_ERROR(budget.Take(raw, kParam));
    for (const RawMember& member : RawMembers(raw)) AppendMember(member.name, member.value, out);
  }
  if (const Json* effort = Find(body, "reasoning_effort"); effort != nullptr) {
    constexpr char kParam[] = "reasoning_effort";
    if (!effort->is_string()) return TypeError(kParam, "a string", *effort);
    constexpr std::string_view kEfforts[] = {"none", "minimal", "low", "medium", "high", "xhigh"};
    if (std::find(std::begin(kEfforts), std::end(kEfforts), *effort) == std::end(kEfforts)) {
      return FieldError(
          kParam, absl::StrCat("'", kParam, "' is none, minimal, low, medium, high or xhigh"));
    }
    if (!limits.reasoning_effort && *effort != "none") return Unsupported(kParam);
    const Json* kwargs = Find(body, "chat_template_kwargs");
    if (kwargs != nullptr && kwargs->contains(kParam)) {
      return FieldError(kParam, absl::StrCat("'", kParam, "' is in 'chat_template_kwargs', too"));
    }
    if (limits.reasoning_effort) AppendMember(kParam, effort->dump(), out);
  }
  if (const Json* documents = Find(body, "documents"); !IsNothing(documents)) {
    LYNX_RETURN_IF_ERROR(CheckList(*documents, "documents", limits.max_documents));
    for (size_t i = 0; i < documents->size(); ++i) {
      const Json& document = (*documents)[i];
      if (!document.is_object()) {
        return TypeError(absl::StrCat("documents[", i, "]"), "an object", document);
      }
    }
    const std::string_view raw = RawValue(text, "documents");
    LYNX_RETURN_IF_ERROR(budget.Take(raw, "documents"));
    AppendMember("documents", raw, out);
  }
  return Closed(std::move(out));
}

}  // namespace

absl::StatusOr<text::ChatInput> ReadChatInput(const Json& body, std::string_view text,
                                              const RequestLimits& limits) {
  Budget budget(limits);
  text::ChatInput input;
  LYNX_ASSIGN_OR_RETURN(input.messages, ReadMessages(body, text, limits, budget));
  LYNX_ASSIGN_OR_RETURN(input.tools_json, ReadTools(body, text, limits, budget));
  LYNX_ASSIGN_OR_RETURN(input.variables_json, ReadVariables(body, text, limits, budget));
  return input;
}

}  // namespace lynx::router
