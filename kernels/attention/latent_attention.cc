#include "kernels/attention/latent_attention.h"

#include <algorithm>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "kernels/attention/attention_tiles.h"
#include "kernels/attention/latent_attention_backends.h"
#include "kernels/attention/split_passes.h"

namespace lynx::kernels {
namespace {

// Enough for the last of them to end at about the same time.
constexpr int64_t kItemsPerThread = 8;
// Of latents: the second tile of a row's heads is to find them in the cache.
constexpr int64_t kMaxItemBytes = 1 << 20;

absl::Status Validate(const LatentAttentionArgs& args, Backend backend) {
  if (args.row_count < 0 || args.heads <= 0 || args.latent_dim <= 0 ||
      args.latent_dim > kMaxLatentDim || args.rope_dim < 0 || args.rope_dim > kMaxLatentRopeDim ||
      args.q_stride < args.heads * (args.latent_dim + args.rope_dim) ||
      args.y_head_stride < args.latent_dim ||
      args.y_stride < (args.heads - 1) * args.y_head_stride + args.latent_dim ||
      args.block_stride_bytes <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("LatentAttention: rows ", args.row_count, ", heads ", args.heads,
                     ", latent_dim ", args.latent_dim, ", rope_dim ", args.rope_dim, ", q_stride ",
                     args.q_stride, ", y_head_stride ", args.y_head_stride, ", y_stride ",
                     args.y_stride, ", block_stride_bytes ", args.block_stride_bytes));
  }
  if (args.kv_dtype == DType::kF16) {
    return absl::InvalidArgumentError("LatentAttention: KV must be f32 or bf16");
  }
  if (args.compute_dtype == DType::kF16) {
    return absl::InvalidArgumentError("LatentAttention: compute dtype must be f32 or bf16");
  }
  if (backend == Backend::kCuda) {  // What is on the device cannot be seen.
    if (args.heads > 65535 || args.row_count >= int64_t{1} << 31) {
      return absl::InvalidArgumentError(
          absl::StrCat("LatentAttention on a GPU: rows ", args.row_count, ", heads ", args.heads));
    }
    return absl::OkStatus();
  }
  for (int64_t r = 0; r < args.row_count; ++r) {
    if (args.rows[r].first != 0 || args.rows[r].position < 0) {
      return absl::InvalidArgumentError(absl::StrCat("LatentAttention: tokens [",
                                                     args.rows[r].first, ", ",
                                                     args.rows[r].position, "] of row ", r));
    }
  }
  return absl::OkStatus();
}

Isa IsaFor(const LatentAttentionArgs& args, const ExecContext& ctx) {
  const bool bf16_products = args.compute_dtype == DType::kBf16 && args.kv_dtype == DType::kBf16 &&
                             args.latent_dim % 32 == 0 && args.rope_dim % 32 == 0;
  return bf16_products ? ctx.isa : std::min(ctx.isa, Isa::kAvx512);
}

// Tiles whose sequence is longer than a fair share of the work are cut along it. The tiles of one
// row take turns then, so that the same thread reads the same latents for all its heads.
void RunItems(const LatentAttentionArgs& args, AttentionWorkspace& workspace,
              const ExecContext& ctx) {
  std::vector<AttentionTile>& tiles = workspace.tiles;
  internal::MakeAttentionTiles(args.rows, args.row_count, args.heads, tiles);
  const int64_t threads = ctx.team == nullptr ? 1 : ctx.team->threads();
  int64_t splits = 0;
  for (const AttentionTile& tile : tiles) splits += tile.splits;
  const int64_t share = std::max<int64_t>(1, splits / (threads * kItemsPerThread));
  auto is_cut = [&](const AttentionTile& tile) { return threads > 1 && tile.splits >= 2 * share; };
  const int64_t split_bytes = kSplitTokens * (args.latent_dim + args.rope_dim) *
                              static_cast<int64_t>(SizeOf(args.kv_dtype));
  const auto step =
      static_cast<int32_t>(std::min(share, std::max<int64_t>(1, kMaxItemBytes / split_bytes)));

  const Isa isa = IsaFor(args, ctx);
  const auto body = internal::LatentAttentionItemFor(isa);
  const auto merge = internal::LatentAttentionMergeFor(isa);
  auto* const sums = workspace.sums<LatentSums>();
  const auto run = [&](std::span<const internal::PassItem> items,
                       std::span<const internal::PassMerge> merges) {
    internal::RunPass(args, body, items, merge, merges, sums, ctx);
  };
  internal::SplitPasses passes(workspace.places<LatentSums>(), threads, run, workspace.lists);
  for (auto first = tiles.begin(), last = first; first != tiles.end(); first = last) {
    workspace.units.clear();
    const int32_t* blocks = args.rows[first->row].blocks;
    for (; last != tiles.end() && args.rows[last->row].blocks == blocks; ++last) {
      if (is_cut(*last)) {
        workspace.units.push_back({&*last, 0, 1});
      } else {
        passes.AddWhole(*last, 0, 1);
      }
    }
    passes.AddCut(workspace.units, step);
  }
  passes.Finish();
}

}  // namespace

absl::Status LatentAttention(const LatentAttentionArgs& args, AttentionWorkspace& workspace,
                             const ExecContext& ctx) {
  LYNX_RETURN_IF_ERROR(Validate(args, ctx.backend));
  LYNX_RETURN_IF_ERROR(CheckUsable(ctx));
  switch (ctx.backend) {
    case Backend::kReference:
      internal::LatentAttentionReference(args);
      break;
    case Backend::kCpu:
      RunItems(args, workspace, ctx);
      break;
    case Backend::kCuda:
      if (args.row_count == 0) break;
      return QueueOnDevice("LatentAttention", ctx.device->latent_attention, args, ctx);
  }
  return absl::OkStatus();
}

}  // namespace lynx::kernels
