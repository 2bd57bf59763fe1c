#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/proto/control.pb.h"
#include "gtest/gtest.h"
#include "services/router/session/sequence_service.h"

namespace lynx::testing {

// A cluster whose every word the test speaks. Sequences are named by the order of their start.
// Speaking for one that has ended or was cancelled fails the test.
class FakeSequenceService final : public router::SequenceService {
 public:
  absl::StatusOr<router::SequenceId> Start(router::SequenceRequest request,
                                           router::SequenceSink& sink) override {
    if (!refusal.ok() && started.size() >= refuse_from) return refusal;
    started.push_back(std::move(request));
    const router::SequenceId id = started.size() + 1000;
    sinks_[id] = &sink;
    return id;
  }
  void Cancel(router::SequenceId id) override {
    if (sinks_.erase(id) > 0) cancelled.push_back(id - 1001);
  }
  router::ClusterView View() const override { return {.ready = true, .reason = {}}; }

  static proto::Token Token(TokenId id, std::optional<float> logprob = {}) {
    proto::Token token;
    token.set_id(id);
    if (logprob.has_value()) token.set_logprob(*logprob);
    return token;
  }

  void First(size_t sequence, const proto::Token& token,
             const std::vector<proto::Token>& prompt = {}, int32_t cached_tokens = 0) {
    proto::FirstToken first;
    *first.mutable_token() = token;
    for (const proto::Token& one : prompt) *first.add_prompt() = one;
    first.set_cached_tokens(cached_tokens);
    Sink(sequence).OnFirstToken(first);
  }
  // The first token sampled was a stop id, which is in no message.
  void FirstIsStop(size_t sequence) { Sink(sequence).OnFirstToken(proto::FirstToken()); }
  void First(size_t sequence, TokenId id) { First(sequence, Token(id)); }

  void Tokens(size_t sequence, const std::vector<proto::Token>& tokens) {
    std::vector<const proto::Token*> pointers;
    for (const proto::Token& token : tokens) pointers.push_back(&token);
    Sink(sequence).OnTokens(pointers);
  }
  void Tokens(size_t sequence, const std::vector<TokenId>& ids) {
    std::vector<proto::Token> tokens;
    for (TokenId id : ids) tokens.push_back(Token(id));
    Tokens(sequence, tokens);
  }

  void End(size_t sequence, proto::Terminal::FinishReason reason) {
    EndWith(sequence, {.status = absl::OkStatus(), .finish_reason = reason});
  }
  void Fail(size_t sequence, absl::Status status, absl::Duration retry_after = absl::Seconds(1),
            bool work_begun = false) {
    EndWith(sequence,
            {.status = std::move(status), .retry_after = retry_after, .work_begun = work_begun});
  }

  bool Live(size_t sequence) const { return sinks_.contains(sequence + 1001); }
  size_t live() const { return sinks_.size(); }

  std::vector<router::SequenceRequest> started;
  std::vector<size_t> cancelled;  // Those that were live.
  absl::Status refusal;           // Not OK: Start refuses, from sequence `refuse_from` on.
  size_t refuse_from = 0;

 private:
  router::SequenceSink& Sink(size_t sequence) {
    const auto it = sinks_.find(sequence + 1001);
    if (it == sinks_.end()) {
      ADD_FAILURE() << "sequence " << sequence << " is not live";
      std::abort();
    }
    return *it->second;
  }
  void EndWith(size_t sequence, const router::SequenceEnd& end) {
    router::SequenceSink& sink = Sink(sequence);
    sinks_.erase(sequence + 1001);
    sink.OnEnd(end);
  }

  std::map<router::SequenceId, router::SequenceSink*> sinks_;
};

}  // namespace lynx::testing
