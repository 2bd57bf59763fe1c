#include "services/cli/loadtest/workloads.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

namespace lynx::loadtest {
namespace {

// What draws are for (MixSeed).
enum Purpose : uint64_t { kArrivals, kLengths, kText, kGroups, kPrefixText, kBlockText };

Random Purposeful(uint64_t seed, Purpose purpose, uint64_t index = 0) {
  return Random(MixSeed(MixSeed(seed, purpose), index));
}

Arrivals MakeArrivals(const ArrivalOptions& options, uint64_t seed) {
  return Arrivals(options.process, options.rate, options.burstiness, MixSeed(seed, kArrivals));
}

class SyntheticWorkload final : public Workload {
 public:
  SyntheticWorkload(const SyntheticOptions& options, const RequestBody& body)
      : options_(options),
        body_(body),
        arrivals_(MakeArrivals(options.arrivals, options.seed)),
        lengths_(MixSeed(options.seed, kLengths)),
        groups_(MixSeed(options.seed, kGroups)) {}

  std::optional<PlannedRequest> Next() override {
    request_.index = next_index_++;
    request_.due = arrivals_.Next();
    request_.input_tokens = static_cast<int32_t>(options_.input.Sample(lengths_));
    request_.output_tokens = static_cast<int32_t>(options_.output.Sample(lengths_));
    group_ = groups_.Below(static_cast<uint64_t>(options_.prefix_groups));
    return request_;
  }

  std::string Body() override {
    const int64_t words = options_.scale.WordsFor(request_.input_tokens);
    const int64_t shared = std::min(words, options_.scale.WordsWithin(options_.prefix_tokens));
    std::string text;
    if (shared > 0) {
      Random prefix = Purposeful(options_.seed, kPrefixText, group_);
      text = RandomWords(prefix, shared);
    }
    if (words > shared) {
      Random own = Purposeful(options_.seed, kText, static_cast<uint64_t>(request_.index));
      if (shared > 0) text += ' ';
      text += RandomWords(own, words - shared);
    }
    return body_.Streamed(PlainPrompt(text, body_.endpoint()), request_.output_tokens);
  }

 private:
  const SyntheticOptions options_;
  const RequestBody body_;
  Arrivals arrivals_;
  Random lengths_;
  Random groups_;
  PlannedRequest request_;
  uint64_t group_ = 0;
  int64_t next_index_ = 0;
};

class PromptWorkload final : public Workload {
 public:
  PromptWorkload(const ArrivalOptions& arrivals, std::vector<Prompt> prompts, const Lengths& output,
                 uint64_t seed, const RequestBody& body)
      : prompts_(std::move(prompts)),
        output_(output),
        body_(body),
        arrivals_(MakeArrivals(arrivals, seed)),
        lengths_(MixSeed(seed, kLengths)) {}

  std::optional<PlannedRequest> Next() override {
    request_.index = next_index_++;
    request_.due = arrivals_.Next();
    const auto sampled = static_cast<int32_t>(output_.Sample(lengths_));
    request_.output_tokens = prompt().max_tokens > 0 ? prompt().max_tokens : sampled;
    return request_;
  }

  std::string Body() override { return body_.Streamed(prompt(), request_.output_tokens); }

 private:
  const Prompt& prompt() const {
    return prompts_[static_cast<size_t>(request_.index) % prompts_.size()];
  }

  const std::vector<Prompt> prompts_;
  const Lengths output_;
  const RequestBody body_;
  Arrivals arrivals_;
  Random lengths_;
  PlannedRequest request_;
  int64_t next_index_ = 0;
};

class TraceWorkload final : public Workload {
 public:
  TraceWorkload(const TraceOptions& options, Trace trace, const RequestBody& body)
      : options_(options), trace_(std::move(trace)), body_(body) {}

  std::optional<PlannedRequest> Next() override {
    if (next_index_ == trace_.requests.size()) return std::nullopt;
    const TraceRequest& recorded = trace_.requests[next_index_];
    request_.index = static_cast<int64_t>(next_index_++);
    request_.due = recorded.at / options_.speed;
    request_.input_tokens = Scaled(recorded.input_tokens);
    request_.output_tokens = Scaled(recorded.output_tokens);
    return request_;
  }

  std::string Body() override {
    const TraceRequest& recorded = trace_.requests[static_cast<size_t>(request_.index)];
    const int64_t words = options_.scale.WordsFor(request_.input_tokens);
    const int64_t block_words =
        std::max<int64_t>(1, options_.scale.WordsWithin(Scaled(options_.block_tokens)));
    std::string text;
    int64_t done = 0;
    const auto add = [&](Random random, int64_t count) {
      if (count <= 0) return;
      if (done > 0) text += ' ';
      text += RandomWords(random, count);
      done += count;
    };
    for (const uint64_t id : recorded.hash_ids) {
      add(Purposeful(options_.seed, kBlockText, id), std::min(block_words, words - done));
    }
    add(Purposeful(options_.seed, kText, static_cast<uint64_t>(request_.index)), words - done);
    return body_.Streamed(PlainPrompt(text, body_.endpoint()), request_.output_tokens);
  }

 private:
  int32_t Scaled(int64_t tokens) const {
    const double scaled = std::round(static_cast<double>(tokens) * options_.length_scale);
    return static_cast<int32_t>(std::clamp(scaled, 1.0, static_cast<double>(kMaxTokens)));
  }

  const TraceOptions options_;
  const Trace trace_;
  const RequestBody body_;
  PlannedRequest request_;
  size_t next_index_ = 0;
};

}  // namespace

std::unique_ptr<Workload> MakeSyntheticWorkload(const SyntheticOptions& options,
                                                const RequestBody& body) {
  return std::make_unique<SyntheticWorkload>(options, body);
}

std::unique_ptr<Workload> MakePromptWorkload(const ArrivalOptions& arrivals,
                                             std::vector<Prompt> prompts, const Lengths& output,
                                             uint64_t seed, const RequestBody& body) {
  return std::make_unique<PromptWorkload>(arrivals, std::move(prompts), output, seed, body);
}

std::unique_ptr<Workload> MakeTraceWorkload(const TraceOptions& options, Trace trace,
                                            const RequestBody& body) {
  return std::make_unique<TraceWorkload>(options, std::move(trace), body);
}

}  // namespace lynx::loadtest
