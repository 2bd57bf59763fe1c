#pragma once

#include "common/base/ids.h"
#include "common/model/model_runner.h"
#include "common/transfer/handshake.h"

namespace lynx::node {

// What a node of one rank, holding every KV head, says of itself to the peers it exchanges KV with.
transfer::NodeIdentity TransferIdentity(Incarnation incarnation, model::ModelRunner& runner);

}  // namespace lynx::node
