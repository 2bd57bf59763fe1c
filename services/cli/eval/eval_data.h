#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/dtype.h"

namespace lynx::text {
class ChatTemplate;
class Tokenizer;
}  // namespace lynx::text

namespace lynx::cli {

// A stretch of text that no model was trained on.
struct TextWindow {
  int32_t domain = 0;  // Into TextSet::domains.
  std::vector<TokenId> tokens;
};

struct TextSet {
  std::vector<std::string> domains;
  // In turn one of each domain, as far as they last: neighbours, and so batches, mix domains.
  std::vector<TextWindow> windows;
  int64_t too_short = 0;  // Left out, not counting those past the wanted number.
};

// A question with one right answer.
struct TaskItem {
  int32_t task = 0;             // Into TaskSet::tasks.
  std::vector<TokenId> prompt;  // As the chat template writes it.
  std::string answer;           // Never empty.
};

struct TaskSet {
  std::vector<std::string> tasks;
  std::vector<TaskItem> items;  // In turn one of each task, as TextSet::windows.
};

// Reads text-*.jsonl of `dir`: a line is {"domain": D, "text": T}. At most `per_domain` windows of
// each domain, of at least `min_tokens` tokens.
//
//   NotFound         no such folder, or no such file in it.
//   InvalidArgument  a line that is not such an object, with file:line.
absl::StatusOr<TextSet> LoadTexts(const std::filesystem::path& dir,
                                  const text::Tokenizer& tokenizer, int32_t per_domain,
                                  int32_t min_tokens);

// Reads task-*.jsonl of `dir`: a line is {"task": T, "prompt": P, "answer": A}. At most `per_task`
// items of each task; P becomes the message of a user. Fails as LoadTexts does.
absl::StatusOr<TaskSet> LoadTasks(const std::filesystem::path& dir,
                                  const text::Tokenizer& tokenizer,
                                  const text::ChatTemplate& chat_template, int32_t per_task);

}  // namespace lynx::cli
