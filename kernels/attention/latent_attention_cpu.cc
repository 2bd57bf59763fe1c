#include "kernels/attention/latent_attention_backends.h"
#include "kernels/core/simd.h"

#if defined(__AMX_BF16__)
#include "kernels/attention/latent_products_amx.h"
#elif defined(__AVX512BF16__)
#include "kernels/attention/latent_products_bf16.h"
#else
#include "kernels/attention/latent_products_fma.h"
#endif

namespace lynx::kernels::LYNX_KERNEL_ISA {
namespace {

struct Query {
  int64_t row;
  int64_t head;
  int32_t position;
};

Query QueryAt(const LatentAttentionArgs& args, const AttentionTile& tile, int i) {
  const int64_t row = tile.row + (tile.first + i) / args.heads;
  return {.row = row, .head = (tile.first + i) % args.heads, .position = args.rows[row].position};
}

// Whether the latents of tokens [begin, end) hold neither NaN nor Inf.
template <typename T>
bool FiniteLatents(const SplitLatents<T>& latents, int begin, int end,
                   const LatentAttentionArgs& args) {
  F32x16 zero = Zero();
  for (int t = begin; t < end; ++t) {
    const T* c = latents.block[t / kLanes] + t % kLanes * (args.latent_dim + args.rope_dim);
    for (int64_t d = 0; d < args.latent_dim; d += kLanes) {
      zero = MulAdd(LoadUpTo(c + d, args.latent_dim - d), Zero(), zero);
    }
  }
  return ReduceAdd(zero) == 0;
}

// Gives `sums`, a query's, those of `split` besides those of the splits before.
void AddSplit(const Query& query, int32_t split, const LatentSums& of_split, int64_t dims,
              LatentSums* sums) {
  if (VisibleIn(0, query.position, split).end == 0) return;
  if (split == 0) {
    *sums = of_split;
  } else {
    MergeSums(sums, of_split, dims);
  }
}

void Finish(const LatentAttentionArgs& args, const Query& query, const LatentSums& sums) {
  const int64_t place = query.row * args.y_stride + query.head * args.y_head_stride;
  if (args.compute_dtype == DType::kBf16) {
    WriteMean(static_cast<Bf16*>(args.y) + place, sums, args.latent_dim);
  } else {
    WriteMean(static_cast<float*>(args.y) + place, sums, args.latent_dim);
  }
}

template <typename Products>
class ItemRun {
 public:
  ItemRun(const LatentAttentionArgs& args, const AttentionTile& tile)
      : args_(args), tile_(tile), products_(args.latent_dim, args.rope_dim) {
    for (int i = 0; i < tile.queries; ++i) {
      queries_[i] = QueryAt(args, tile, i);
      q_[i] = args.q + queries_[i].row * args.q_stride +
              queries_[i].head * (args.latent_dim + args.rope_dim);
    }
    products_.SetQueries(q_, tile.queries);
  }

  void Run(const AttentionItem& item, LatentSums* sums) {
    SplitLatents<Kv> latents = Locate(item.split_begin);
    for (int32_t split = item.split_begin; split < item.split_end; ++split) {
      const SplitLatents<Kv> next =
          split + 1 < item.split_end ? Locate(split + 1) : SplitLatents<Kv>();
      if (sums != nullptr) {
        SumSplit(latents, split, next, sums + (split - item.split_begin) * tile_.queries);
      } else if (split == 0) {
        SumSplit(latents, split, next, sums_);
      } else {
        SumSplit(latents, split, next, split_sums_);
        for (int i = 0; i < tile_.queries; ++i) {
          AddSplit(queries_[i], split, split_sums_[i], args_.latent_dim, &sums_[i]);
        }
      }
      latents = next;
    }
    if (sums != nullptr) return;
    for (int i = 0; i < tile_.queries; ++i) Finish(args_, queries_[i], sums_[i]);
  }

 private:
  using Kv = typename Products::Kv;
  using Weight = typename Products::Weight;

  SplitLatents<Kv> Locate(int32_t split) const {
    int most = 0;
    for (int i = 0; i < tile_.queries; ++i) {
      const int visible = VisibleIn(0, queries_[i].position, split).end;
      most = visible > most ? visible : most;
    }
    SplitLatents<Kv> latents;
    latents.blocks = BlocksOfTokens(most);
    for (int b = 0; b < latents.blocks; ++b) {
      const int64_t block = args_.rows[tile_.row].blocks[split * kSplitBlocks + b];
      latents.block[b] = reinterpret_cast<const Kv*>(args_.kv + block * args_.block_stride_bytes);
    }
    return latents;
  }

  void SumSplit(const SplitLatents<Kv>& latents, int32_t split, const SplitLatents<Kv>& next,
                LatentSums* sums) {
    int visible[kTileQueries];
    int fewest = kSplitTokens, most = 0;
    for (int i = 0; i < tile_.queries; ++i) {
      visible[i] = VisibleIn(0, queries_[i].position, split).end;
      fewest = visible[i] < fewest ? visible[i] : fewest;
      most = visible[i] > most ? visible[i] : most;
    }
    // A token that one query attends to and another must not see takes part with weight zero, which
    // changes nothing unless its latent is no number.
    if (FiniteLatents(latents, fewest, most, args_)) {
      SumQueries(latents, visible, 0, tile_.queries, most, next, sums);
      return;
    }
    for (int i = 0; i < tile_.queries; ++i) {
      products_.SetQueries(q_ + i, 1);
      SumQueries(latents, visible, i, 1, visible[i], SplitLatents<Kv>(), sums);
    }
    products_.SetQueries(q_, tile_.queries);
  }

  // Of queries [begin, begin + count), which are those of products_.
  void SumQueries(const SplitLatents<Kv>& latents, const int* visible, int begin, int count,
                  int tokens, const SplitLatents<Kv>& next, LatentSums* sums) {
    products_.Scores(latents, scores_);
    for (int i = 0; i < count; ++i) {
      WeighScores(scores_[i], args_.scale, {0, visible[begin + i]}, latents.blocks, weights_[i],
                  &sums[begin + i]);
    }
    products_.Values(latents, tokens, weights_, next, sums + begin);
  }

  const LatentAttentionArgs& args_;
  const AttentionTile& tile_;
  Query queries_[kTileQueries];
  const float* q_[kTileQueries];
  Products products_;
  alignas(64) float scores_[kTileQueries][kSplitTokens];
  alignas(64) Weight weights_[kTileQueries][kSplitTokens];
  LatentSums sums_[kTileQueries];
  LatentSums split_sums_[kTileQueries];
};

}  // namespace

void LatentAttentionItem(const LatentAttentionArgs& args, const AttentionTile& tile,
                         const AttentionItem& item, LatentSums* sums) {
#if defined(__AVX512BF16__)
  ItemRun<LatentBf16Products>(args, tile).Run(item, sums);
#else
  if (args.kv_dtype == DType::kF32) {
    ItemRun<LatentFmaProducts<float> >(args, tile).Run(item, sums);
  } else {
    ItemRun<LatentFmaProducts<Bf16> >(args, tile).Run(item, sums);
  }
#endif
}

void LatentAttentionMerge(const LatentAttentionArgs& args, const AttentionTile& tile,
                          const AttentionMerge& merge, const LatentSums* sums, LatentSums* into) {
  const Query query = QueryAt(args, tile, merge.query);
  for (int32_t split = merge.split_begin; split < merge.split_end; ++split, sums += merge.stride) {
    AddSplit(query, split, *sums, args.latent_dim, into);
  }
  if (merge.split_end == tile.splits) Finish(args, query, *into);
}

}  // namespace lynx::kernels::LYNX_KERNEL_ISA
