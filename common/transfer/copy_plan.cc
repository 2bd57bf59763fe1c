#include "common/transfer/copy_plan.h"

#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace lynx::transfer {
namespace {

// Bounds that no real model reaches; they keep the products below far from overflow.
constexpr int32_t kMaxDimension = 1 << 16;
constexpr size_t kMaxReachText = 200;

int64_t ElementBytes(const std::string& dtype) {
  if (dtype == Name(DType::kF32)) return 4;
  if (dtype == Name(DType::kBf16) || dtype == Name(DType::kF16)) return 2;
  return 0;
}

absl::Status CheckDescriptor(const proto::LayoutDescriptor& d, const char* whose) {
  const auto bad = [&](const char* field, int64_t value) {
    return absl::InvalidArgumentError(
        absl::StrCat("the ", whose, "'s layout has ", field, " = ", value));
  };
  const bool latent = d.kind() == proto::LayoutDescriptor::KIND_MLA;
  if (!latent && d.kind() != proto::LayoutDescriptor::KIND_GQA) return bad("kind", d.kind());
  for (const auto& [field, value] :
       {std::pair{"layers", d.layers()}, std::pair{"kv_heads_total", d.kv_heads_total()},
        std::pair{"head_dim", d.head_dim()}, std::pair{"block_tokens", d.block_tokens()},
        std::pair{"tp_size", d.tp_size()}}) {
    if (value <= 0 || value > kMaxDimension) return bad(field, value);
  }
  if (latent && d.kv_heads_total() != 1) return bad("kv_heads_total", d.kv_heads_total());
  if (d.tp_rank() < 0 || d.tp_rank() >= d.tp_size()) return bad("tp_rank", d.tp_rank());
  if (d.replica() < 0 || d.replica() > kMaxDimension) return bad("replica", d.replica());
  if (d.head_begin() < 0) return bad("head_begin", d.head_begin());
  if (d.head_end() <= d.head_begin() || d.head_end() > d.kv_heads_total()) {
    return bad("head_end", d.head_end());
  }
  if (d.reach_size() != 0 && d.reach_size() != d.layers()) return bad("reaches", d.reach_size());
  for (const proto::LayerReach& reach : d.reach()) {
    if (reach.window() < 0) return bad("a window", reach.window());
    if (reach.chunk() < 0) return bad("a chunk", reach.chunk());
  }
  if (ElementBytes(d.dtype()) == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the ", whose, "'s layout has dtype = ", d.dtype().substr(0, 32)));
  }
  return absl::OkStatus();
}

std::string Describe(const proto::LayoutDescriptor& d) {
  if (d.kind() == proto::LayoutDescriptor::KIND_MLA) {
    return absl::StrCat("latents of ", d.head_dim());
  }
  return absl::StrCat("K and V of ", d.kv_heads_total(), " heads of ", d.head_dim());
}

kv::Reach ReachOf(const proto::LayoutDescriptor& d, int32_t layer) {
  if (d.reach_size() == 0) return {};
  return {d.reach(layer).window(), d.reach(layer).chunk()};
}

std::string Describe(const kv::Reach& reach) {
  if (!reach.bounded()) return "all tokens";
  std::string text;
  if (reach.window > 0) absl::StrAppend(&text, "a window of ", reach.window);
  if (reach.chunk > 0)
    absl::StrAppend(&text, text.empty() ? "" : " in ", "chunks of ", reach.chunk);
  return text;
}

// "12 layers keep a window of 128, 12 all tokens".
std::string DescribeReaches(const proto::LayoutDescriptor& d) {
  std::map<std::string, int32_t> layers;
  for (int32_t layer = 0; layer < d.layers(); ++layer) ++layers[Describe(ReachOf(d, layer))];
  std::string text;
  for (const auto& [reach, count] : layers) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", count, text.empty() ? " layers keep " : " ",
                    reach);
    if (text.size() > kMaxReachText) return text + ", ...";
  }
  return text;
}

// Bytes of the K or the V half (latents: the whole) of one block in one layer for `heads` heads.
int64_t HalfBytes(const proto::LayoutDescriptor& d, int64_t heads) {
  return heads * d.block_tokens() * d.head_dim() * ElementBytes(d.dtype());
}

// Ranks that hold the same head.
int32_t Copies(const proto::LayoutDescriptor& d) {
  return std::max(1, d.tp_size() / d.kv_heads_total());
}
// Which of them this one is.
int32_t CopyOf(const proto::LayoutDescriptor& d) { return d.tp_rank() % Copies(d); }

}  // namespace

proto::LayoutDescriptor DescribeLayout(const kv::KvLayout& layout, int32_t kv_heads_total,
                                       int32_t tp_size, int32_t tp_rank, int32_t head_begin) {
  proto::LayoutDescriptor d;
  d.set_kind(layout.kind == kv::KvKind::kLatent ? proto::LayoutDescriptor::KIND_MLA
                                                : proto::LayoutDescriptor::KIND_GQA);
  d.set_layers(layout.layers);
  d.set_kv_heads_total(kv_heads_total);
  d.set_head_dim(layout.head_dim);
  d.set_dtype(std::string(Name(layout.dtype)));
  d.set_block_tokens(kv::kBlockTokens);
  d.set_tp_size(tp_size);
  d.set_tp_rank(tp_rank);
  d.set_head_begin(head_begin);
  d.set_head_end(head_begin + layout.kv_heads);
  for (int32_t layer = 0; layer < layout.groups.layers(); ++layer) {
    const kv::Reach& reach = layout.groups.reach(layout.groups.group_of(layer));
    proto::LayerReach& entry = *d.add_reach();
    entry.set_window(reach.window);
    entry.set_chunk(reach.chunk);
  }
  return d;
}

absl::StatusOr<CopyPlan> PlanCopy(const proto::LayoutDescriptor& from,
                                  const proto::LayoutDescriptor& to) {
  LYNX_RETURN_IF_ERROR(CheckDescriptor(from, "sender"));
  LYNX_RETURN_IF_ERROR(CheckDescriptor(to, "receiver"));
  const auto differ = [](const char* field, const auto& a, const auto& b) {
    return absl::FailedPreconditionError(
        absl::StrCat(field, " differs: the sender has ", a, ", the receiver has ", b));
  };
  if (from.kind() != to.kind()) return differ("the KV layout", Describe(from), Describe(to));
  if (from.layers() != to.layers()) return differ("layers", from.layers(), to.layers());
  if (from.kv_heads_total() != to.kv_heads_total()) {
    return differ("kv_heads_total", from.kv_heads_total(), to.kv_heads_total());
  }
  if (from.head_dim() != to.head_dim()) return differ("head_dim", from.head_dim(), to.head_dim());
  if (from.dtype() != to.dtype()) return differ("dtype", from.dtype(), to.dtype());
  if (from.block_tokens() != to.block_tokens()) {
    return differ("block_tokens", from.block_tokens(), to.block_tokens());
  }
  for (int32_t layer = 0; layer < from.layers(); ++layer) {
    const kv::Reach a = ReachOf(from, layer);
    const kv::Reach b = ReachOf(to, layer);
    if (a == b) continue;
    return differ("what layers keep",
                  absl::StrCat(Describe(a), " in layer ", layer, " (", DescribeReaches(from), ")"),
                  absl::StrCat(Describe(b), " (", DescribeReaches(to), ")"));
  }

  CopyPlan plan;
  const int32_t begin = std::max(from.head_begin(), to.head_begin());
  const int32_t heads = std::min(from.head_end(), to.head_end()) - begin;
  if (heads <= 0 || CopyOf(from) != CopyOf(to) % Copies(from)) return plan;
  const int64_t from_heads = from.head_end() - from.head_begin();
  const int64_t to_heads = to.head_end() - to.head_begin();
  const int64_t halves = from.kind() == proto::LayoutDescriptor::KIND_MLA ? 1 : 2;
  plan.block_bytes = halves * HalfBytes(from, heads);
  plan.to_head = begin - to.head_begin();
  plan.heads = heads;
  for (int64_t half = 0; half < halves; ++half) {
    const CopySlice slice = {
        half * HalfBytes(from, from_heads) + HalfBytes(from, begin - from.head_begin()),
        half * HalfBytes(to, to_heads) + HalfBytes(to, begin - to.head_begin()),
        HalfBytes(from, heads)};
    if (!plan.slices.empty()) {
      CopySlice& last = plan.slices.back();
      if (last.from + last.bytes == slice.from && last.to + last.bytes == slice.to) {
        last.bytes += slice.bytes;
        continue;
      }
    }
    plan.slices.push_back(slice);
  }
  return plan;
}

}  // namespace lynx::transfer
