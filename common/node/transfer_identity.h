#pragma once

#include "common/base/ids.h"
#include "common/model/model_runner.h"
#include "common/model/shard_plan.h"
#include "common/transfer/handshake.h"

namespace lynx::node {

// What one rank of a node says of itself to those it exchanges KV with. `incarnation` is the
// node's.
transfer::NodeIdentity TransferIdentity(Incarnation incarnation, model::ModelRunner& runner,
                                        const model::ParallelLayout& layout = {}, int32_t rank = 0);

// The first KV head that the rank holds; of latents 0.
int32_t FirstKvHead(const model::ModelSpec& spec, const model::ParallelLayout& layout,
                    int32_t rank);

}  // namespace lynx::node
