#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lynx::kv {

// Which tokens the rows of a layer attend to.
struct Reach {
  int32_t window = 0;  // The last so many, the row's own among them; 0: all.
  int32_t chunk = 0;   // Those in the same chunk of so many; 0: all.

  // The first token that a row at `position` attends to; never less for a later position.
  int32_t FirstFor(int32_t position) const;
  bool bounded() const { return window > 0 || chunk > 0; }

  friend bool operator==(const Reach&, const Reach&) = default;
};

// The layers of a model in groups of equal size, each of layers of one reach. Every group has a
// block table of its own, so that what lies before a window need not be kept because other layers
// still read it; a block is kBlockTokens tokens of the layers of one group, so that blocks of all
// groups are alike and come from one pool.
//
// What a sequence holds: to compute its rows from `position` on, in each group the blocks from
// FirstBlock(group, position) on.
class KvGroups {
 public:
  // One group of all layers, which attend to all tokens.
  KvGroups() = default;
  // The fewest groups: of as many layers as divide the number of layers of every reach. Not empty.
  explicit KvGroups(std::span<const Reach> layers);

  int32_t count() const { return static_cast<int32_t>(reaches_.size()); }
  const Reach& reach(int32_t group) const { return reaches_[static_cast<size_t>(group)]; }
  // Layers that this was made of; 0: any number, in one group.
  int32_t layers() const { return static_cast<int32_t>(places_.size()); }
  int32_t group_of(int32_t layer) const {
    return places_.empty() ? 0 : places_[static_cast<size_t>(layer)].group;
  }
  // The layer's place among those of its group.
  int32_t slot_of(int32_t layer) const {
    return places_.empty() ? layer : places_[static_cast<size_t>(layer)].slot;
  }

  // The first block that rows from `position` on read.
  int32_t FirstBlock(int32_t group, int32_t position) const;

  // Blocks of all groups that the rows of [position, ...) need of tables that reach to block
  // `end_block`.
  int64_t BlocksHeld(int32_t position, int64_t end_block) const;
  // The most that is held at any time while tokens [0, tokens) are computed in steps of up to
  // `step_rows` rows.
  int64_t MostBlocks(int64_t tokens, int32_t step_rows) const;
  // The same in one group however many tokens there are; 0: there is no bound.
  int64_t MostBlocksOf(int32_t group, int32_t step_rows) const;
  // Tokens whose KV fits into `blocks` blocks at once; the largest int64_t where windows bound all.
  int64_t MostTokens(int64_t blocks) const;

  friend bool operator==(const KvGroups&, const KvGroups&) = default;

 private:
  struct Place {
    int32_t group = 0;
    int32_t slot = 0;
    friend bool operator==(const Place&, const Place&) = default;
  };
  std::vector<Reach> reaches_ = {Reach()};  // [groups]
  std::vector<Place> places_;               // [layers], or empty
};

}  // namespace lynx::kv
