#include "services/cli/eval/eval_data.h"

#include <algorithm>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"
#include "common/model/json_file.h"
#include "common/text/chat_template.h"
#include "common/text/tokenizer.h"

namespace lynx::cli {
namespace {

constexpr size_t kMaxFileBytes = size_t{256} << 20;

// One line of a file: named members that are all strings.
class Record {
 public:
  static absl::StatusOr<Record> Parse(std::string_view line, std::string place) {
    LYNX_ASSIGN_OR_RETURN(nlohmann::json json, model::ParseJson(line, place));
    if (!json.is_object()) {
      return absl::InvalidArgumentError(absl::StrCat(place, ": not a JSON object"));
    }
    return Record(std::move(json), std::move(place));
  }

  absl::StatusOr<std::string> Member(const char* name) const {
    const auto member = json_.find(name);
    if (member == json_.end() || !member->is_string()) {
      return Wrong(absl::StrCat("no string \"", name, "\""));
    }
    auto value = member->get<std::string>();
    if (value.empty()) return Wrong(absl::StrCat("\"", name, "\" is empty"));
    return value;
  }

  absl::Status Wrong(std::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(place_, ": ", std::string(what)));
  }

 private:
  Record(nlohmann::json json, std::string place)
      : json_(std::move(json)), place_(std::move(place)) {}

  nlohmann::json json_;
  std::string place_;  // file:line
};

// The records of all `prefix`*.jsonl in `dir`, by file name.
absl::StatusOr<std::vector<Record>> ReadRecords(const std::filesystem::path& dir,
                                                std::string_view prefix) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(dir, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with(prefix) && name.ends_with(".jsonl")) files.push_back(entry->path());
  }
  if (error) return absl::NotFoundError(absl::StrCat(dir.string(), ": ", error.message()));
  if (files.empty()) {
    return absl::NotFoundError(
        absl::StrCat(dir.string(), ": no ", std::string(prefix), "*.jsonl in it"));
  }
  std::sort(files.begin(), files.end());

  std::vector<Record> records;
  for (const std::filesystem::path& file : files) {
    LYNX_ASSIGN_OR_RETURN(const std::string content, ReadFile(file, kMaxFileBytes));
    std::string_view rest = content;
    for (int64_t number = 1; !rest.empty(); ++number) {
      const size_t end = rest.find('\n');
      const std::string_view line = rest.substr(0, end);
      rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
      LYNX_ASSIGN_OR_RETURN(Record record,
                            Record::Parse(line, absl::StrCat(file.string(), ":", number)));
      records.push_back(std::move(record));
    }
  }
  return records;
}

// The position of `name` in `names`, where it is put when new.
int32_t IndexOf(const std::string& name, std::vector<std::string>& names) {
  const auto found = std::find(names.begin(), names.end(), name);
  const auto index = static_cast<int32_t>(found - names.begin());
  if (found == names.end()) names.push_back(name);
  return index;
}

// Takes the first of every group, then the second of every group, and so on.
template <typename T>
std::vector<T> TakeInTurn(std::vector<std::vector<T>> groups) {
  std::vector<T> all;
  for (size_t turn = 0, taken = 1; taken > 0; ++turn) {
    taken = 0;
    for (std::vector<T>& group : groups) {
      if (turn >= group.size()) continue;
      all.push_back(std::move(group[turn]));
      ++taken;
    }
  }
  return all;
}

}  // namespace

absl::StatusOr<TextSet> LoadTexts(const std::filesystem::path& dir,
                                  const text::Tokenizer& tokenizer, int32_t per_domain,
                                  int32_t min_tokens) {
  LYNX_ASSIGN_OR_RETURN(const std::vector<Record> records, ReadRecords(dir, "text-"));
  TextSet set;
  std::vector<std::vector<TextWindow>> by_domain;
  for (const Record& record : records) {
    LYNX_ASSIGN_OR_RETURN(const std::string domain, record.Member("domain"));
    LYNX_ASSIGN_OR_RETURN(const std::string text, record.Member("text"));
    const int32_t index = IndexOf(domain, set.domains);
    by_domain.resize(set.domains.size());
    auto& windows = by_domain[static_cast<size_t>(index)];
    if (windows.size() >= static_cast<size_t>(per_domain)) continue;
    auto tokens = tokenizer.Encode(text, /*add_special_tokens=*/true);
    if (!tokens.ok()) return record.Wrong(std::string(tokens.status().message()));
    if (tokens->size() < static_cast<size_t>(min_tokens)) {
      ++set.too_short;
      continue;
    }
    windows.push_back({.domain = index, .tokens = *std::move(tokens)});
  }
  set.windows = TakeInTurn(std::move(by_domain));
  return set;
}

absl::StatusOr<TaskSet> LoadTasks(const std::filesystem::path& dir,
                                  const text::Tokenizer& tokenizer,
                                  const text::ChatTemplate& chat_template, int32_t per_task) {
  LYNX_ASSIGN_OR_RETURN(const std::vector<Record> records, ReadRecords(dir, "task-"));
  TaskSet set;
  std::vector<std::vector<TaskItem>> by_task;
  for (const Record& record : records) {
    LYNX_ASSIGN_OR_RETURN(const std::string task, record.Member("task"));
    LYNX_ASSIGN_OR_RETURN(const std::string prompt, record.Member("prompt"));
    LYNX_ASSIGN_OR_RETURN(const std::string answer, record.Member("answer"));
    const int32_t index = IndexOf(task, set.tasks);
    by_task.resize(set.tasks.size());
    auto& items = by_task[static_cast<size_t>(index)];
    if (items.size() >= static_cast<size_t>(per_task)) continue;
    const auto chat =
        chat_template.Render({.messages = {{.role = "user", .content = prompt, .extra_json = ""}},
                              .add_generation_prompt = true,
                              .tools_json = "",
                              .variables_json = "",
                              .now = absl::Now()});
    if (!chat.ok()) return record.Wrong(std::string(chat.status().message()));
    auto tokens = tokenizer.Encode(chat->text, /*add_special_tokens=*/false, chat->given);
    if (!tokens.ok()) return record.Wrong(std::string(tokens.status().message()));
    if (tokens->empty()) return record.Wrong("the chat template gives an empty prompt");
    items.push_back({.task = index, .prompt = *std::move(tokens), .answer = answer});
  }
  set.items = TakeInTurn(std::move(by_task));
  return set;
}

}  // namespace lynx::cli
