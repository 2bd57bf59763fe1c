#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "services/router/membership/node_table.h"

namespace lynx::router {

// Numeric classes of prefill and decode.
struct ClassNames {
  std::string prefill;
  std::string decode;
  bool operator==(const ClassNames&) const = default;
};

// The nodes of one numeric class that compute prompts, and those of one class that go on from them:
// within such a pair an exact sequence has the same bits wherever it is placed. Of equal classes,
// decode nodes that take prompts compute them as well, so `prefill` may be empty. Ready nodes and
// suspect ones, in endpoint order. Points into the table: valid until it changes.
struct ClassPair {
  std::string_view prefill_class;
  std::string_view decode_class;
  std::vector<const Member*> prefill;
  std::vector<const Member*> decode;

  ClassNames names() const { return {std::string(prefill_class), std::string(decode_class)}; }
  // Some node of each side is.
  bool ready() const;
  // Whether that decode node of the pair may compute prompts itself.
  bool Local(const Member& node) const;
};

// The pairs whose nodes may exchange KV, made of the members that `takes` accepts. Exact sequences
// go to the first that is ready. Pairs with prefill nodes come first; of these equal classes, since
// only there a decode node computes lost KV of a prompt with the bits it had; then those with the
// most nodes on the smaller side, and then the order of names: routers that see the same nodes
// agree without talking. A suspect node counts, so that a missed heartbeat moves nobody.
std::vector<ClassPair> ClassPairs(const NodeTable& nodes,
                                  const std::function<bool(const Member&)>& takes);

}  // namespace lynx::router
