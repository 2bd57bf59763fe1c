#include "kernels/attention/paged_attention.h"

#include <algorithm>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "kernels/attention/attention_tiles.h"
#include "kernels/attention/paged_attention_backends.h"
#include "kernels/attention/split_passes.h"

namespace lynx::kernels {
namespace {

// Of KV: a few microseconds of streaming, so that handing an item over costs little.
constexpr int64_t kMinItemBytes = 256 << 10;
// Enough for the last of them to end at about the same time.
constexpr int64_t kItemsPerThread = 8;

absl::Status Validate(const PagedAttentionArgs& args, Backend backend) {
  const int64_t width = args.heads * args.head_dim;
  if (args.row_count < 0 || args.kv_heads <= 0 || args.heads <= 0 ||
      args.heads % args.kv_heads != 0 || args.head_dim <= 0 || args.head_dim > kMaxHeadDim ||
      args.q_stride < width || args.y_stride < width || args.block_stride_bytes <= 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "PagedAttention: rows ", args.row_count, ", heads ", args.heads, ", kv_heads ",
        args.kv_heads, ", head_dim ", args.head_dim, ", q_stride ", args.q_stride, ", y_stride ",
        args.y_stride, ", block_stride_bytes ", args.block_stride_bytes));
  }
  if (args.kv_dtype == DType::kF16) {
    return absl::InvalidArgumentError("PagedAttention: KV must be f32 or bf16");
  }
  if (args.compute_dtype == DType::kF16) {
    return absl::InvalidArgumentError("PagedAttention: compute dtype must be f32 or bf16");
  }
  if (backend == Backend::kCuda) {  // What is on the device cannot be seen.
    if (args.heads > 65535 || args.row_count >= int64_t{1} << 31) {
      return absl::InvalidArgumentError(
          absl::StrCat("PagedAttention on a GPU: rows ", args.row_count, ", heads ", args.heads));
    }
    return absl::OkStatus();
  }
  for (int64_t r = 0; r < args.row_count; ++r) {
    if (args.rows[r].first < 0 || args.rows[r].position < args.rows[r].first) {
      return absl::InvalidArgumentError(absl::StrCat("PagedAttention: tokens [", args.rows[r].first,
                                                     ", ", args.rows[r].position, "] of row ", r));
    }
  }
  return absl::OkStatus();
}

void MakeTiles(const PagedAttentionArgs& args, std::vector<AttentionTile>& tiles) {
  const int64_t group = args.heads / args.kv_heads;
  internal::MakeAttentionTiles(args.rows, args.row_count, group, tiles);
  for (AttentionTile& tile : tiles) {
    const bool one_row = tile.first + tile.queries <= group;
    tile.heads_together = static_cast<int32_t>(
        one_row ? std::min<int64_t>(kTileQueries / tile.queries, args.kv_heads) : 1);
  }
}

Isa IsaFor(const PagedAttentionArgs& args, const ExecContext& ctx) {
  const bool bf16_products = args.compute_dtype == DType::kBf16 && args.kv_dtype == DType::kBf16 &&
                             args.head_dim % 32 == 0;
  return bf16_products ? ctx.isa : std::min(ctx.isa, Isa::kAvx512);
}

// KV heads and splits of a tile that make a work item.
struct ItemShape {
  int64_t heads;
  int32_t splits;
};

// Of about `pairs` pairs of a head and a split. The sequence is cut where its heads would be too
// few for the items, or for a block to be read in one piece.
ItemShape ShapeOf(const AttentionTile& tile, int64_t pairs) {
  const int64_t heads = pairs / tile.splits;
  const bool cut = tile.heads_together > 1 ? tile.splits > 1 && heads < tile.heads_together
                                           : tile.splits >= 2 * pairs;
  if (!cut) return {std::max<int64_t>(1, heads), tile.splits};
  const int64_t together = std::min<int64_t>(pairs, tile.heads_together);
  return {together, static_cast<int32_t>(std::min<int64_t>(pairs / together, tile.splits))};
}

void RunItems(const PagedAttentionArgs& args, AttentionWorkspace& workspace,
              const ExecContext& ctx) {
  std::vector<AttentionTile>& tiles = workspace.tiles;
  MakeTiles(args, tiles);
  const int64_t pair_bytes =
      2 * kSplitTokens * args.head_dim * static_cast<int64_t>(SizeOf(args.kv_dtype));
  int64_t pairs = 0;
  for (const AttentionTile& tile : tiles) pairs += tile.splits * args.kv_heads;
  const int64_t threads = ctx.team == nullptr ? 1 : ctx.team->threads();
  const int64_t item_pairs =
      threads == 1
          ? pairs
          : std::max({int64_t{1}, kMinItemBytes / pair_bytes, pairs / (threads * kItemsPerThread)});

  const Isa isa = IsaFor(args, ctx);
  const auto body = internal::PagedAttentionItemFor(isa);
  const auto merge = internal::PagedAttentionMergeFor(isa);
  auto* const sums = workspace.sums<AttentionSums>();
  const auto run = [&](std::span<const internal::PassItem> items,
                       std::span<const internal::PassMerge> merges) {
    internal::RunPass(args, body, items, merge, merges, sums, ctx);
  };
  internal::SplitPasses passes(workspace.places<AttentionSums>(), threads, run, workspace.lists);
  for (const AttentionTile& tile : tiles) {
    const ItemShape shape = ShapeOf(tile, item_pairs);
    const bool cut = shape.splits < tile.splits;
    workspace.units.clear();
    for (int64_t head = 0; head < args.kv_heads; head += shape.heads) {
      const int64_t head_end = std::min(head + shape.heads, args.kv_heads);
      if (cut) {
        workspace.units.push_back({&tile, head, head_end});
      } else {
        passes.AddWhole(tile, head, head_end);
      }
    }
    passes.AddCut(workspace.units, shape.splits);
  }
  passes.Finish();
}

}  // namespace

absl::Status PagedAttention(const PagedAttentionArgs& args, AttentionWorkspace& workspace,
                            const ExecContext& ctx) {
  LYNX_RETURN_IF_ERROR(Validate(args, ctx.backend));
  LYNX_RETURN_IF_ERROR(CheckUsable(ctx));
  switch (ctx.backend) {
    case Backend::kReference:
      internal::PagedAttentionReference(args);
      break;
    case Backend::kCpu:
      RunItems(args, workspace, ctx);
      break;
    case Backend::kCuda:
      if (args.row_count == 0) break;
      return QueueOnDevice("PagedAttention", ctx.device->paged_attention, args, ctx);
  }
  return absl::OkStatus();
}

}  // namespace lynx::kernels
