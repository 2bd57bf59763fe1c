#include "services/cli/chat.h"

#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/config/flag_set.h"
#include "common/http/client.h"

namespace lynx::cli {
namespace {

using Json = nlohmann::json;

struct ChatConfig {
  std::string url = "http://127.0.0.1:8080";
  std::string model;
  std::string system;
  std::string message;
  int32_t max_tokens = 256;
  double temperature = 0;
  bool stats = false;
  absl::Duration timeout = absl::Minutes(10);
};

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// The message of an OpenAI-style error body, or the body itself.
std::string ErrorText(const std::string& body) {
  const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (json.is_object() && json.contains("error") && json["error"].is_object() &&
      json["error"].contains("message") && json["error"]["message"].is_string()) {
    return json["error"]["message"].get<std::string>();
  }
  return body;
}

class Chat {
 public:
  explicit Chat(const ChatConfig& config) : config_(config) { Reset(); }

  // Asks the server for its model when none was given.
  absl::Status FindModel() {
    if (!config_.model.empty()) return absl::OkStatus();
    LYNX_ASSIGN_OR_RETURN(const http::HttpResponse response,
                          client_.Get(config_.url + "/v1/models", {}, absl::Seconds(10)));
    const Json json = Json::parse(response.body, nullptr, /*allow_exceptions=*/false);
    if (response.status != 200 || !json.is_object() || !json.contains("data") ||
        !json["data"].is_array() || json["data"].empty() || !json["data"][0].is_object() ||
        !json["data"][0].contains("id") || !json["data"][0]["id"].is_string()) {
      return absl::UnavailableError(
          absl::StrCat(config_.url, "/v1/models names no model: ", ErrorText(response.body)));
    }
    config_.model = json["data"][0]["id"].get<std::string>();
    return absl::OkStatus();
  }

  void Reset() {
    messages_ = Json::array();
    if (!config_.system.empty()) {
      messages_.push_back({{"role", "system"}, {"content", config_.system}});
    }
  }

  // Sends `text`, prints the answer as it streams, and remembers both.
  absl::Status Ask(const std::string& text) {
    messages_.push_back({{"role", "user"}, {"content", ReplaceInvalidUtf8(text)}});
    const Json request = {{"model", config_.model},
                          {"messages", messages_},
                          {"max_tokens", config_.max_tokens},
                          {"temperature", config_.temperature},
                          {"stream", true},
                          {"stream_options", {{"include_usage", true}}}};
    answer_.clear();
    failure_ = absl::OkStatus();
    finished_ = false;
    output_tokens_ = 0;
    const absl::Time sent = SteadyClock::Instance().Now();
    first_ = last_ = sent;
    auto response = client_.PostForEvents(
        config_.url + "/v1/chat/completions", {{"Content-Type", "application/json"}}, Dump(request),
        {.total = config_.timeout}, [this](const http::SseEvent& event) { return OnEvent(event); });
    if (!answer_.empty()) std::fputc('\n', stdout);
    std::fflush(stdout);
    absl::Status status = response.status();
    if (status.ok() && response->status != 200) {
      status = absl::UnavailableError(
          absl::StrCat("HTTP ", response->status, ": ", ErrorText(response->body)));
    }
    if (status.ok()) status = failure_;
    if (status.ok() && !finished_) status = absl::DataLossError("the answer was cut short");
    if (!status.ok()) {
      messages_.erase(messages_.size() - 1);
      return status;
    }
    messages_.push_back({{"role", "assistant"}, {"content", answer_}});
    if (config_.stats) PrintStats(sent);
    return absl::OkStatus();
  }

 private:
  bool OnEvent(const http::SseEvent& event) {
    if (event.data == "[DONE]") {
      finished_ = true;
      return true;
    }
    const Json chunk = Json::parse(event.data, nullptr, /*allow_exceptions=*/false);
    if (!chunk.is_object()) {
      failure_ = absl::DataLossError("the server sent an event that is not JSON");
      return false;
    }
    if (chunk.contains("error")) {
      failure_ = absl::UnavailableError(ErrorText(event.data));
      return false;
    }
    if (chunk.contains("usage") && chunk["usage"].is_object()) {
      output_tokens_ = chunk["usage"].value("completion_tokens", int64_t{0});
    }
    if (!chunk.contains("choices") || !chunk["choices"].is_array() || chunk["choices"].empty()) {
      return true;
    }
    const Json& choice = chunk["choices"][0];
    if (!choice.is_object()) return true;
    // The end is a token too, counted by the server but without text.
    if (choice.contains("finish_reason") && choice["finish_reason"].is_string()) {
      last_ = SteadyClock::Instance().Now();
    }
    if (!choice.contains("delta") || !choice["delta"].is_object()) return true;
    const Json& delta = choice["delta"];
    if (!delta.contains("content") || !delta["content"].is_string()) return true;
    const std::string text = delta["content"].get<std::string>();
    if (text.empty()) return true;
    last_ = SteadyClock::Instance().Now();
    if (answer_.empty()) first_ = last_;
    answer_ += text;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
    return true;
  }

  void PrintStats(absl::Time sent) const {
    const double ttft_ms = absl::ToDoubleMilliseconds(first_ - sent);
    std::printf("  [%lld tokens, TTFT %.1f ms", static_cast<long long>(output_tokens_), ttft_ms);
    if (output_tokens_ > 1) {
      std::printf(", TPOT %.2f ms", absl::ToDoubleMilliseconds(last_ - first_) /
                                        static_cast<double>(output_tokens_ - 1));
    }
    std::printf("]\n");
    std::fflush(stdout);
  }

  ChatConfig config_;
  http::HttpClient client_;
  Json messages_;
  std::string answer_;
  absl::Status failure_;
  bool finished_ = false;
  int64_t output_tokens_ = 0;
  absl::Time first_;
  absl::Time last_;
};

}  // namespace

int RunChat(int argc, const char* const* argv) {
  ChatConfig config;
  config::FlagSet flags("lynx chat",
                        "Talks to an OpenAI-style server. /reset forgets the conversation, /quit "
                        "or the end of the input leaves.");
  flags.AddString("url", &config.url, "base URL of the server, with or without /v1");
  flags.AddString("served-model-name", &config.model,
                  "name of the model; empty takes the server's first");
  flags.AddString("system", &config.system, "system message");
  flags.AddString("message", &config.message, "ask this one question and leave");
  flags.AddInt("max-tokens", &config.max_tokens, {1, 1 << 20}, "longest answer");
  flags.AddDouble("temperature", &config.temperature, {0, 2}, "0 is greedy");
  flags.AddBool("stats", &config.stats, "print token count, TTFT and TPOT after each answer");
  flags.AddDuration("timeout", &config.timeout, {absl::Seconds(1)}, "longest wait for an answer");
  const auto outcome = flags.Parse(argc, argv);
  if (!outcome.ok()) {
    std::fprintf(stderr, "lynx chat: %s\n", std::string(outcome.status().message()).c_str());
    return 2;
  }
  if (*outcome == config::ParseOutcome::kPrinted) return 0;
  // OpenAI clients want the base URL with /v1; both forms are understood.
  while (config.url.ends_with('/')) config.url.pop_back();
  if (config.url.ends_with("/v1")) config.url.resize(config.url.size() - 3);

  Chat chat(config);
  const auto report = [](const absl::Status& status) {
    if (!status.ok()) {
      std::fprintf(stderr, "lynx chat: %s\n", std::string(status.message()).c_str());
    }
    return status.ok() ? 0 : 1;
  };
  if (const absl::Status found = chat.FindModel(); !found.ok()) return report(found);
  if (!config.message.empty()) return report(chat.Ask(config.message));
  const bool interactive = isatty(STDIN_FILENO) != 0;
  std::string line;
  for (;;) {
    if (interactive) std::fputs("> ", stdout);
    std::fflush(stdout);
    if (!std::getline(std::cin, line) || line == "/quit") break;
    if (line.empty()) continue;
    if (line == "/reset") {
      chat.Reset();
      continue;
    }
    const int failed = report(chat.Ask(line));
    if (failed != 0 && !interactive) return failed;
  }
  return 0;
}

}  // namespace lynx::cli
