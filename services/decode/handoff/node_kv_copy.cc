#include "services/decode/handoff/node_kv_copy.h"

#include <utility>

#include "common/base/ids.h"

namespace lynx::decode {

NodeKvCopy::NodeKvCopy(kv::KvArena& kv, node::RankChannel* ranks, int32_t replica,
                       const kv::BlockTable& table, int32_t position)
    : kv_(kv), ranks_(ranks), replica_(replica), position_(position), id_(RandomId()) {
  if (replica_ == 0) own_.emplace(kv, table.blocks(), position);
  if (ranks_ == nullptr) return;
  proto::RankMessage message;
  proto::SaveKv& save = *message.mutable_save_kv();
  save.set_copy(id_);
  save.set_position(position);
  save.mutable_blocks()->Assign(table.blocks().begin(), table.blocks().end());
  Tell(std::move(message));
}

NodeKvCopy::~NodeKvCopy() {
  if (ranks_ == nullptr) return;
  proto::RankMessage message;
  message.mutable_drop_kv()->set_copy(id_);
  Tell(std::move(message));
}

int64_t NodeKvCopy::bytes() const { return kv::SwappedKv::BytesOf(kv_.layout(), position_); }

void NodeKvCopy::Restore(const kv::BlockTable& table, int32_t first_block) const {
  if (own_.has_value()) own_->Restore(kv_, table.blocks(), first_block);
  if (ranks_ == nullptr) return;
  proto::RankMessage message;
  proto::RestoreKv& restore = *message.mutable_restore_kv();
  restore.set_copy(id_);
  restore.set_first_block(first_block);
  restore.mutable_blocks()->Assign(table.blocks().begin(), table.blocks().end());
  Tell(std::move(message));
}

void NodeKvCopy::Tell(proto::RankMessage message) const {
  message.set_replica(replica_);
  ranks_->Tell(message);
}

}  // namespace lynx::decode
