#include "tests/support/fleet_workload.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace lynx::testing {
namespace {

// The standard's distributions differ between libraries; these do not.
class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}

  double Uniform() { return (static_cast<double>(random_() >> 11) + 0.5) * 0x1p-53; }  // (0, 1)
  int32_t Below(int32_t n) { return static_cast<int32_t>(Uniform() * n); }
  double Exponential(double mean) { return -mean * std::log(Uniform()); }

  // Marsaglia and Tsang (2000), with mean 1; for a shape below 1 by boosting.
  double Gamma(double shape) {
    if (shape < 1) {
      const double boost = std::pow(Uniform(), 1 / shape);
      return Gamma(shape + 1) * (shape + 1) * boost / shape;
    }
    const double d = shape - 1.0 / 3;
    for (;;) {
      const double x = std::sqrt(-2 * std::log(Uniform())) * std::cos(2 * M_PI * Uniform());
      const double v = std::pow(1 + x / std::sqrt(9 * d), 3);
      if (v > 0 && std::log(Uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) {
        return d * v / shape;
      }
    }
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace

std::vector<FleetRequest> MakeConversations(const ConversationOptions& options) {
  Dice dice(options.seed);
  const auto append = [&](std::vector<TokenId>& text, int32_t tokens) {
    for (int32_t i = 0; i < tokens; ++i) text.push_back(dice.Below(options.vocab_size));
  };
  std::vector<std::vector<TokenId>> systems(static_cast<size_t>(options.system_prompts));
  for (std::vector<TokenId>& system : systems) append(system, options.system_tokens);

  std::vector<std::vector<TokenId>> open;  // What the next turn of each starts with.
  std::vector<FleetRequest> trace;
  double seconds = 0;
  while (static_cast<int32_t>(trace.size()) < options.requests) {
    seconds += dice.Gamma(options.burstiness) / options.requests_per_second;
    // As many go on as begin, once enough are open.
    std::vector<TokenId> text;
    const auto size = static_cast<int32_t>(open.size());
    if (size > 0 && dice.Uniform() < 0.7) {
      const auto it = open.begin() + dice.Below(size);
      text = std::move(*it);
      open.erase(it);
    } else {
      text = systems[static_cast<size_t>(dice.Below(options.system_prompts))];
    }
    append(text, 1 + static_cast<int32_t>(dice.Exponential(options.turn_tokens)));
    FleetRequest request = {.arrival = absl::Seconds(seconds), .prompt = text};
    request.output_tokens = 2 + static_cast<int32_t>(dice.Exponential(options.output_tokens));
    const int32_t room = options.context_tokens - static_cast<int32_t>(text.size());
    if (room < 2) continue;
    request.output_tokens = std::min(request.output_tokens, room);
    if (options.answer) {
      const std::vector<TokenId> answer = options.answer(text, request.output_tokens);
      text.insert(text.end(), answer.begin(), answer.end());
    } else {
      append(text, request.output_tokens);
    }
    if (static_cast<int32_t>(text.size()) < options.context_tokens / 2) {
      open.push_back(std::move(text));
    }
    trace.push_back(std::move(request));
  }
  return trace;
}

}  // namespace lynx::testing
