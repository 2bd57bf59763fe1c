#include "common/node/sampling_wire.h"

namespace lynx::node {

engine::SamplingParams SamplingFromWire(const proto::SamplingParams& wire) {
  engine::SamplingParams params;
  params.temperature = wire.temperature();
  params.top_p = wire.top_p();
  params.top_k = wire.top_k();
  params.min_p = wire.min_p();
  params.presence_penalty = wire.presence_penalty();
  params.frequency_penalty = wire.frequency_penalty();
  params.repetition_penalty = wire.repetition_penalty();
  for (const proto::LogitBias& bias : wire.logit_bias()) {
    params.logit_bias.emplace_back(bias.token(), bias.bias());
  }
  params.seed = wire.seed();
  params.choice_index = wire.choice_index();
  params.max_new_tokens = wire.max_new_tokens();
  params.min_new_tokens = wire.min_new_tokens();
  params.stop_token_ids.assign(wire.stop_token_ids().begin(), wire.stop_token_ids().end());
  params.top_logprobs = wire.top_logprobs();
  params.prompt_logprobs = wire.prompt_logprobs();
  return params;
}

proto::Token TokenToWire(const engine::SampledToken& token) {
  proto::Token wire;
  wire.set_id(token.id);
  if (token.has_logprob) wire.set_logprob(token.logprob);
  for (const engine::TopLogprob& top : token.top) {
    proto::TopLogprob& entry = *wire.add_top();
    entry.set_token(top.id);
    entry.set_logprob(top.logprob);
  }
  return wire;
}

}  // namespace lynx::node
