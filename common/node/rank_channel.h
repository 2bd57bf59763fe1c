#pragma once

#include "common/proto/rank.pb.h"

namespace lynx::node {

// Between the ranks of a node, beside their steps.
class RankChannel {
 public:
  virtual ~RankChannel() = default;
  // Ranks besides this one.
  virtual int others() const = 0;
  // Rank 0: to all others. What was told before a step is carried out before they make it. The
  // others: to rank 0. Nothing is lost while the node lives. Any thread.
  virtual void Tell(const proto::RankMessage& message) = 0;
};

}  // namespace lynx::node
