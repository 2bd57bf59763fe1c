#include "common/text/chat_template.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/text/internal/jinja/interpreter.h"
#include "common/text/internal/jinja/parser.h"
#include "common/text/internal/json_file.h"

namespace lynx::text {
namespace {

using internal::BadJson;
using internal::FindField;
using internal::Json;
using jinja::Value;

constexpr int64_t kMaxConfigBytes = int64_t{16} << 20;
constexpr int64_t kMaxTemplateBytes = int64_t{1} << 20;

// What templates may name; a token that the folder does not set stays undefined.
constexpr const char* kTokenVariables[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                           "pad_token", "cls_token", "mask_token"};

absl::StatusOr<jinja::Body> ParseSource(std::string_view source) {
  if (source.size() > static_cast<size_t>(kMaxTemplateBytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the chat template is over ", kMaxTemplateBytes, " bytes"));
  }
  if (!IsValidUtf8(source)) {
    return absl::InvalidArgumentError("the chat template is not valid UTF-8");
  }
  return jinja::Parse(source);
}

absl::StatusOr<ChatTemplate::Variables> ReadTokens(const Json& config, const std::string& file) {
  ChatTemplate::Variables variables;
  for (const char* name : kTokenVariables) {
    const Json* token = FindField(config, name);
    if (token == nullptr) continue;
    // Either the spelling itself or an object that describes the token.
    const Json* content = token->is_object() ? FindField(*token, "content") : token;
    if (content == nullptr || !content->is_string()) {
      return BadJson(file, std::string("'") + name + "' must be a string or hold one");
    }
    variables.emplace_back(name, content->get<std::string>());
  }
  return variables;
}

Value RoleValue(const std::string& role) {
  const bool is_word = std::all_of(role.begin(), role.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-';
  });
  return is_word ? Value(role) : Value(jinja::Text::Given(role));
}

absl::StatusOr<Value> MessageValue(const ChatMessage& message, size_t index) {
  const std::string place = absl::StrCat("messages[", index, "]");
  if (!IsValidUtf8(message.role) || !IsValidUtf8(message.content.value_or(""))) {
    return absl::InvalidArgumentError(place + ": not valid UTF-8");
  }
  jinja::Dict fields;
  fields.Set("role", RoleValue(message.role));
  fields.Set("content", message.content.has_value() ? Value(jinja::Text::Given(*message.content))
                                                    : Value(jinja::None{}));
  if (!message.extra_json.empty()) {
    LYNX_ASSIGN_OR_RETURN(const Value extra, jinja::FromJson(message.extra_json, place));
    if (extra.dict() == nullptr) return absl::InvalidArgumentError(place + ": not a JSON object");
    for (const auto& [key, value] : extra.dict()->items) fields.Set(key, value);
    fields.is_given = true;
  }
  return jinja::MakeDict(std::move(fields));
}

}  // namespace

struct ChatTemplate::Impl {
  jinja::Body body;
  jinja::Body tools_body;  // For requests with tools; empty: `body` serves both.
  bool has_tools_body = false;
  Variables variables;
};

namespace {

// A conversation with a tool call whose arguments are `arguments_json`.
ChatInput Calling(std::string_view arguments_json) {
  ChatInput input;
  input.messages = {
      {.role = "user", .content = "question", .extra_json = {}},
      {.role = "assistant",
       .content = std::nullopt,
       .extra_json = absl::StrCat(R"({"tool_calls":[{"id":"call00001","type":"function",)",
                                  R"("function":{"name":"tool","arguments":)",
                                  std::string(arguments_json), "}}]}")},
      {.role = "tool",
       .content = "answer",
       .extra_json = R"({"name":"tool","tool_call_id":"call00001"})"}};
  input.tools_json =
      R"([{"type":"function","function":{"name":"tool","description":"A tool.","parameters":)"
      R"({"type":"object","properties":{"key":{"type":"string"}},"required":["key"]}}}])";
  return input;
}

}  // namespace

absl::Status ChatTemplate::CheckRenders() const {
  const auto talk = [](std::initializer_list<const char*> roles) {
    ChatInput input;
    for (const char* role : roles) input.messages.push_back({role, "words", {}});
    return input;
  };
  absl::Status first;
  for (const ChatInput& input :
       {talk({"user"}), talk({"system", "user"}), talk({"user", "assistant", "user"}),
        Calling(R"({"key":"value"})")}) {
    const absl::Status status = Render(input).status();
    if (status.ok()) return status;
    if (first.ok()) first = status;
  }
  return first;
}

bool ChatTemplate::TakesArgumentsAsText() const {
  const auto as_object = Render(Calling(R"({"key":"value"})"));
  // An object that is put into a text comes out as Python prints it, which no model was taught.
  if (as_object.ok() && as_object->text.find("{'key': 'value'}") == std::string::npos) return false;
  return Render(Calling(R"("{\"key\": \"value\"}")")).ok();
}

bool ChatTemplate::HeedsReasoningEffort() const {
  const auto with = [&](const char* effort) {
    ChatInput input;
    input.messages = {{.role = "user", .content = "question", .extra_json = {}}};
    input.variables_json = absl::StrCat(R"({"reasoning_effort":")", effort, "\"}");
    return Render(input);
  };
  const auto low = with("low");
  const auto high = with("high");
  return low.ok() && high.ok() && low->text != high->text;
}

ChatTemplate::ChatTemplate(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::~ChatTemplate() = default;

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Parse(std::string_view source,
                                                                  const Variables& variables) {
  auto impl = std::make_unique<Impl>();
  LYNX_ASSIGN_OR_RETURN(impl->body, ParseSource(source));
  impl->variables = variables;
  return std::unique_ptr<ChatTemplate>(new ChatTemplate(std::move(impl)));
}

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Load(
    const std::filesystem::path& model_dir) {
  const std::string config_file = (model_dir / "tokenizer_config.json").string();
  const std::string template_file = (model_dir / "chat_template.jinja").string();
  Json config = Json::object();
  if (auto read = internal::ReadJsonObject(config_file, kMaxConfigBytes); read.ok()) {
    config = *std::move(read);
  } else if (!absl::IsNotFound(read.status())) {
    return read.status();
  }
  auto impl = std::make_unique<Impl>();
  LYNX_ASSIGN_OR_RETURN(impl->variables, ReadTokens(config, config_file));

  const auto parse = [](const std::string& source,
                        const std::string& place) -> absl::StatusOr<jinja::Body> {
    absl::StatusOr<jinja::Body> body = ParseSource(source);
    if (!body.ok()) return BadJson(place, std::string(body.status().message()));
    return body;
  };
  const Json* field = FindField(config, "chat_template");
  if (auto source = internal::ReadBoundedFile(template_file, kMaxTemplateBytes); source.ok()) {
    LYNX_ASSIGN_OR_RETURN(impl->body, parse(*source, template_file));
  } else if (!absl::IsNotFound(source.status())) {
    return source.status();
  } else if (field == nullptr) {
    return absl::NotFoundError(model_dir.string() + ": the model has no chat template");
  } else if (field->is_string()) {
    LYNX_ASSIGN_OR_RETURN(impl->body,
                          parse(field->get<std::string>(), config_file + ": chat_template"));
  } else if (field->is_array()) {
    bool has_default = false;
    for (size_t i = 0; i < field->size(); ++i) {
      const std::string place = absl::StrCat(config_file, ": chat_template[", i, "]");
      LYNX_ASSIGN_OR_RETURN(const std::string name,
                            internal::StringField((*field)[i], "name", place));
      LYNX_ASSIGN_OR_RETURN(const std::string text,
                            internal::StringField((*field)[i], "template", place));
      if (name == "default") {
        LYNX_ASSIGN_OR_RETURN(impl->body, parse(text, place));
        has_default = true;
      } else if (name == "tool_use") {
        LYNX_ASSIGN_OR_RETURN(impl->tools_body, parse(text, place));
        impl->has_tools_body = true;
      }
    }
    if (!has_default) return BadJson(config_file, "chat_template has no entry named 'default'");
  } else {
    return BadJson(config_file, "'chat_template' must be a string or a list");
  }
  return std::unique_ptr<ChatTemplate>(new ChatTemplate(std::move(impl)));
}

absl::StatusOr<ChatTemplate::Prompt> ChatTemplate::Render(const ChatInput& input) const {
  std::vector<Value> messages;
  for (size_t i = 0; i < input.messages.size(); ++i) {
    LYNX_ASSIGN_OR_RETURN(Value message, MessageValue(input.messages[i], i));
    messages.push_back(std::move(message));
  }
  Value tools = jinja::None{};
  if (!input.tools_json.empty()) {
    LYNX_ASSIGN_OR_RETURN(tools, jinja::FromJson(input.tools_json, "tools"));
    if (tools.list() == nullptr) return absl::InvalidArgumentError("tools: not a JSON array");
  }
  jinja::Dict variables;
  for (const auto& [name, value] : impl_->variables) variables.Set(name, Value(value));
  if (!input.variables_json.empty()) {
    constexpr std::string_view kPlace = "chat_template_kwargs";
    LYNX_ASSIGN_OR_RETURN(const Value extra, jinja::FromJson(input.variables_json, kPlace));
    if (extra.dict() == nullptr) {
      return absl::InvalidArgumentError("chat_template_kwargs: not a JSON object");
    }
    for (const auto& [name, value] : extra.dict()->items) variables.Set(name, value);
  }
  // Set last: a request's extra variables must not stand in for its messages.
  const bool with_tools = tools.list() != nullptr && impl_->has_tools_body;
  LYNX_ASSIGN_OR_RETURN(Value list, jinja::MakeList(std::move(messages)));
  variables.Set("messages", std::move(list));
  variables.Set("tools", std::move(tools));
  if (variables.Find("documents") == nullptr) variables.Set("documents", jinja::None{});
  variables.Set("add_generation_prompt", Value(input.add_generation_prompt));

  jinja::RenderOptions options;
  options.now = input.now;
  LYNX_ASSIGN_OR_RETURN(const jinja::Text text,
                        jinja::Render(with_tools ? impl_->tools_body : impl_->body,
                                      std::move(variables.items), options));
  return Prompt{text.bytes(), {text.given().begin(), text.given().end()}};
}

}  // namespace lynx::text
