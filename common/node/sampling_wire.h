#pragma once

#include "common/engine/sampler.h"
#include "common/engine/sampling_params.h"
#include "common/proto/control.pb.h"

// Between the engine's values and their wire form.
namespace lynx::node {

// Ranges are checked by Sequence::Create, not here.
engine::SamplingParams SamplingFromWire(const proto::SamplingParams& wire);

proto::Token TokenToWire(const engine::SampledToken& token);

}  // namespace lynx::node
