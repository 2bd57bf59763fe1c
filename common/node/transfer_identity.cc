#include "common/node/transfer_identity.h"

#include "common/transfer/copy_plan.h"

namespace lynx::node {

transfer::NodeIdentity TransferIdentity(Incarnation incarnation, model::ModelRunner& runner) {
  // Blocks travel with all their heads, whatever number of ranks share them.
  const kv::KvLayout layout = runner.shards().layout();
  return {.incarnation = incarnation,
          .compatibility_hash = runner.compatibility_hash(),
          .numeric_class = runner.numeric_class(),
          .layout = transfer::DescribeLayout(layout, layout.kv_heads, /*tp_size=*/1, /*tp_rank=*/0,
                                             /*head_begin=*/0)};
}

}  // namespace lynx::node
