#pragma once

#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "kernels/attention/paged_attention_backends.h"
#include "kernels/core/exec_context.h"

namespace lynx::kernels::internal {

// KV heads of one tile whose splits are summed together.
struct SplitUnit {
  const AttentionTile* tile = nullptr;
  int64_t head_begin = 0;
  int64_t head_end = 0;

  int64_t queries() const { return (head_end - head_begin) * tile->queries; }
};

struct PassItem {
  const AttentionTile* tile = nullptr;
  AttentionItem part = {};
  int64_t sums = -1;  // Where they begin; -1: the item holds all splits, and none are kept.
};

struct PassMerge {
  const AttentionTile* tile = nullptr;
  AttentionMerge part = {};
  int64_t sums = 0;  // Those of the query in the first of its splits.
  int64_t into = 0;
};

// Orders the work of one call of attention into passes: first the items of a pass are run, in any
// order, then its merges. The sums of cut tiles have `capacity` places, which every pass uses anew:
// where a sequence is too long for one pass, what its splits have so far is carried to the next. So
// memory grows neither with rows nor with contexts, and the order of sums is that of one pass.
class SplitPasses {
 public:
  using Run = absl::FunctionRef<void(std::span<const PassItem>, std::span<const PassMerge>)>;
  struct Lists {  // Kept from call to call: then they allocate nothing.
    std::vector<PassItem> items = {};
    std::vector<PassMerge> merges = {};
  };
  static constexpr int64_t kLeastCapacity = 8 * kTileQueries;

  // Borrows `run` and `lists`. capacity >= kLeastCapacity.
  SplitPasses(int64_t capacity, int64_t threads, Run run, Lists& lists);

  // An item of all splits of a tile.
  void AddWhole(const AttentionTile& tile, int64_t head_begin, int64_t head_end);
  // Units to be cut into items of up to `step` splits. They take turns, so that one thread reads
  // what they share. At most kTileQueries queries each.
  void AddCut(std::span<const SplitUnit> units, int32_t step);
  // Runs what is left.
  void Finish();

 private:
  // Of `units`, which have `width` queries together: at most carried_.
  void AddTurns(std::span<const SplitUnit> units, int64_t width, int32_t step);
  // Their splits [begin, begin + count), of those of each tile.
  void AddWindow(std::span<const SplitUnit> units, int32_t begin, int32_t count, int32_t step,
                 bool carried);
  void RunPass();

  const int64_t carried_;  // Places of either set that passes hand on.
  const int64_t window_;   // Places of the splits of a pass; the two sets follow them.
  const int64_t threads_;
  const Run run_;
  Lists& lists_;
  int64_t used_ = 0;  // Of window_, by the current pass.
  // A sequence that a pass ends and one that it begins are both carried, but no third one.
  int64_t carried_set_ = 0;
};

// A Run by the bodies of an operation, with `sums` for places.
template <typename Args, typename Body, typename Merge, typename Sums>
void RunPass(const Args& args, Body body, std::span<const PassItem> items, Merge merge,
             std::span<const PassMerge> merges, Sums* sums, const ExecContext& ctx) {
  ForEach(ctx, std::ssize(items), [&](int64_t i) {
    const PassItem& item = items[static_cast<size_t>(i)];
    body(args, *item.tile, item.part, item.sums < 0 ? nullptr : sums + item.sums);
  });
  ForEach(ctx, std::ssize(merges), [&](int64_t i) {
    const PassMerge& one = merges[static_cast<size_t>(i)];
    merge(args, *one.tile, one.part, sums + one.sums, sums + one.into);
  });
}

}  // namespace lynx::kernels::internal
