#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/text/text_range.h"

namespace lynx::text {

struct ChatMessage {
  std::string role;
  std::optional<std::string> content;  // Empty: null in the template.
  // Further members, as a JSON object: name, tool_calls, tool_call_id, reasoning_content, or a
  // content that is a list of parts (which replaces `content`). Empty: none.
  std::string extra_json;
};

struct ChatInput {
  std::vector<ChatMessage> messages;
  bool add_generation_prompt = true;
  std::string tools_json;      // A JSON array; empty: null in the template.
  std::string variables_json;  // A JSON object of further variables (chat_template_kwargs).
  absl::Time now;              // What strftime_now() sees, in UTC.
};

// The chat template of a model: Jinja as the reference runs it (trim_blocks, lstrip_blocks), from
// chat messages to the text of a prompt.
//
// A template that uses what this implementation lacks does not load, and the error names the place.
// Whatever a loaded template and its input do, rendering ends: work, output and nesting are
// bounded. Immutable; thread-safe.
class ChatTemplate {
 public:
  // Variables such as bos_token that the model folder gives.
  using Variables = std::vector<std::pair<std::string, std::string>>;

  // chat_template.jinja, else chat_template of tokenizer_config.json (a string, or a list of
  // {name, template}: "default", and "tool_use" for requests with tools).
  //
  //   NotFound         the model has no chat template: it takes plain prompts only.
  //   InvalidArgument  names the file, and the place in the template.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Load(const std::filesystem::path& model_dir);

  // From the text of a template.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Parse(std::string_view source,
                                                             const Variables& variables);

  ~ChatTemplate();
  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;

  struct Prompt {
    std::string text;
    // What of it came with the request, in order and apart: to be encoded as ordinary text, so that
    // nobody can write control tokens into a conversation.
    std::vector<TextRange> given;
  };

  // The prompt. It holds its special tokens already: encode it without adding more, and hand
  // `given` to Tokenizer::Encode(). Roles of letters, digits, '_' and '-' are not counted as given,
  // since templates build control tokens of them.
  //
  //   InvalidArgument  the template refused the messages (its own message, as it wrote it), could
  //                    not use them ("line N, column M: ..."), or a JSON member is malformed or too
  //                    deep.
  //   OutOfRange       a limit was reached.
  absl::StatusOr<Prompt> Render(const ChatInput& input) const;

  // Whether some conversation of a few messages can be written; if none can, why the plainest
  // cannot. Requests would all fail so.
  absl::Status CheckRenders() const;

  // Whether the arguments of a tool call are to be given as JSON text. Most templates want the
  // object, and write it as their model expects it; some put a text into its place. Renders a
  // call both ways to find out.
  bool TakesArgumentsAsText() const;

  // Whether the variable `reasoning_effort` makes a difference to what is written.
  bool HeedsReasoningEffort() const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace lynx::text
