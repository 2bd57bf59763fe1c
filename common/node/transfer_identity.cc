#include "common/node/transfer_identity.h"

#include "common/transfer/copy_plan.h"

namespace lynx::node {

int32_t FirstKvHead(const model::ModelSpec& spec, const model::ParallelLayout& layout,
                    int32_t rank) {
  const bool by_head = model::KvLayoutOf(spec, DType::kF32).kind == kv::KvKind::kGroupedHeads;
  return by_head ? model::ShardOf(spec, layout, rank).kv_heads.begin : 0;
}

transfer::NodeIdentity TransferIdentity(Incarnation incarnation, model::ModelRunner& runner,
                                        const model::ParallelLayout& layout, int32_t rank) {
  const model::ModelSpec& spec = runner.spec();
  const kv::KvLayout own = runner.kv().layout();
  transfer::NodeIdentity identity = {
      .incarnation = incarnation,
      .compatibility_hash = runner.compatibility_hash(),
      .numeric_class = runner.numeric_class(),
      .layout =
          transfer::DescribeLayout(own, model::KvLayoutOf(spec, own.dtype).kv_heads, layout.tp,
                                   rank % layout.tp, FirstKvHead(spec, layout, rank))};
  identity.layout.set_replica(rank / layout.tp);
  return identity;
}

}  // namespace lynx::node
