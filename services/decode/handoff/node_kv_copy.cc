#include "services/decode/handoff/node_kv_copy.h"

#include <utility>

#include "common/base/ids.h"
#include "common/base/status_macros.h"

namespace lynx::decode {

absl::StatusOr<std::unique_ptr<NodeKvCopy>> NodeKvCopy::Make(kv::KvArena& kv,
                                                             node::RankChannel* ranks,
                                                             int32_t replica,
                                                             const kv::BlockTable& table,
                                                             int32_t position) {
  std::optional<kv::SwappedKv> own;
  if (replica == 0) {
    LYNX_ASSIGN_OR_RETURN(own, kv::SwappedKv::Copy(kv, table.blocks(), position));
  }
  std::unique_ptr<NodeKvCopy> copy(new NodeKvCopy(kv, ranks, replica, position, std::move(own)));
  if (ranks == nullptr) return copy;
  proto::RankMessage message;
  proto::SaveKv& save = *message.mutable_save_kv();
  save.set_copy(copy->id_);
  save.set_position(position);
  save.mutable_blocks()->Assign(table.blocks().begin(), table.blocks().end());
  copy->Tell(std::move(message));
  return copy;
}

NodeKvCopy::NodeKvCopy(kv::KvArena& kv, node::RankChannel* ranks, int32_t replica, int32_t position,
                       std::optional<kv::SwappedKv> own)
    : kv_(kv),
      ranks_(ranks),
      replica_(replica),
      position_(position),
      id_(RandomId()),
      own_(std::move(own)) {}

NodeKvCopy::~NodeKvCopy() {
  if (ranks_ == nullptr) return;
  proto::RankMessage message;
  message.mutable_drop_kv()->set_copy(id_);
  Tell(std::move(message));
}

int64_t NodeKvCopy::bytes() const { return kv::SwappedKv::BytesOf(kv_.layout(), position_); }

absl::Status NodeKvCopy::Restore(const kv::BlockTable& table, int32_t first_block) const {
  if (own_.has_value()) {
    LYNX_RETURN_IF_ERROR(own_->Restore(kv_, table.blocks(), first_block));
  }
  if (ranks_ == nullptr) return absl::OkStatus();
  proto::RankMessage message;
  proto::RestoreKv& restore = *message.mutable_restore_kv();
  restore.set_copy(id_);
  restore.set_first_block(first_block);
  restore.mutable_blocks()->Assign(table.blocks().begin(), table.blocks().end());
  Tell(std::move(message));
  return absl::OkStatus();
}

void NodeKvCopy::Tell(proto::RankMessage message) const {
  message.set_replica(replica_);
  ranks_->Tell(message);
}

}  // namespace lynx::decode
