#include "kernels/attention/paged_attention_backends.h"
#include "kernels/attention/split_softmax.h"
#include "kernels/core/simd.h"

#if defined(__AMX_BF16__)
#include "kernels/attention/products_amx.h"
#elif defined(__AVX512BF16__)
#include "kernels/attention/products_bf16.h"
#else
#include "kernels/attention/products_fma.h"
#endif

namespace lynx::kernels::LYNX_KERNEL_ISA {
namespace {

struct Query {
  int64_t row;
  int64_t head;  // Within the query heads of a KV head.
  int32_t first, position;
};

Query QueryAt(const PagedAttentionArgs& args, const AttentionTile& tile, int i) {
  const int64_t group = args.heads / args.kv_heads;
  const int64_t row = tile.row + (tile.first + i) / group;
  return {.row = row,
          .head = (tile.first + i) % group,
          .first = args.rows[row].first,
          .position = args.rows[row].position};
}

Visible SeenBy(const Query& query, int32_t split) {
  return VisibleIn(query.first, query.position, split);
}

Visible Union(Visible a, Visible b) {
  if (a.end == 0 || b.end == 0) return a.end == 0 ? b : a;
  return {a.begin < b.begin ? a.begin : b.begin, a.end > b.end ? a.end : b.end};
}

template <typename T>
SplitKv<T> Locate(const PagedAttentionArgs& args, const AttentionTile& tile, int64_t kv_head,
                  int32_t split, Visible visible) {
  SplitKv<T> kv;
  kv.blocks = BlocksOfTokens(visible.end);
  kv.head_elements = kAttentionBlockTokens * args.head_dim;
  kv.first = visible.begin / kLanes;
  for (int b = kv.first; b < kv.blocks; ++b) {
    const int64_t block = args.rows[tile.row].blocks[split * kSplitBlocks + b];
    const auto* base = reinterpret_cast<const T*>(args.kv + block * args.block_stride_bytes);
    kv.k[b] = base + kv_head * kv.head_elements;
    kv.v[b] = base + (args.kv_heads + kv_head) * kv.head_elements;
  }
  return kv;
}

// Whether V of tokens [begin, end) holds neither NaN nor Inf.
template <typename T>
bool FiniteValues(const SplitKv<T>& kv, int begin, int end, int64_t head_dim) {
  F32x16 zero = Zero();
  for (int t = begin; t < end; ++t) {
    const T* v = kv.V(t / kLanes, 0) + t % kLanes * head_dim;
    for (int64_t d = 0; d < head_dim; d += kLanes) {
      zero = MulAdd(LoadUpTo(v + d, head_dim - d), Zero(), zero);
    }
  }
  return ReduceAdd(zero) == 0;
}

// Gives `sums`, a query's, those of `split` besides those of the splits before.
void AddSplit(const Query& query, int32_t split, const AttentionSums& of_split, int64_t head_dim,
              AttentionSums* sums) {
  if (SeenBy(query, split).end == 0) return;
  if (split == query.first / kSplitTokens) {
    *sums = of_split;
  } else {
    MergeSums(sums, of_split, head_dim);
  }
}

// Adds the weight of a token of that score which has no value.
void AddSink(AttentionSums* sums, float score, int64_t head_dim) {
  const float largest = score > sums->largest ? score : sums->largest;
  const F32x16 decay = Exp(Set1(sums->largest - largest));
  for (int64_t d = 0; d < head_dim; d += kLanes) {
    Store(sums->sum + d, Mul(Load(sums->sum + d), decay));
  }
  Store(sums->total, Mul(Load(sums->total), decay));
  alignas(64) float weight[kLanes];
  Store(weight, Exp(Set1(score - largest)));
  sums->total[0] += weight[0];
  sums->largest = largest;
}

void Finish(const PagedAttentionArgs& args, const Query& query, int64_t kv_head,
            AttentionSums& sums) {
  const int64_t head = kv_head * (args.heads / args.kv_heads) + query.head;
  if (args.sinks != nullptr) AddSink(&sums, args.sinks[head], args.head_dim);
  const int64_t place = query.row * args.y_stride + head * args.head_dim;
  if (args.compute_dtype == DType::kBf16) {
    WriteMean(static_cast<Bf16*>(args.y) + place, sums, args.head_dim);
  } else {
    WriteMean(static_cast<float*>(args.y) + place, sums, args.head_dim);
  }
}

template <typename Products>
class ItemRun {
 public:
  ItemRun(const PagedAttentionArgs& args, const AttentionTile& tile, const AttentionItem& item)
      : args_(args), tile_(tile), item_(item), products_(args.head_dim) {
    for (int i = 0; i < tile.queries; ++i) queries_[i] = QueryAt(args, tile, i);
  }

  void Run(AttentionSums* sums) {
    const int64_t group = tile_.heads_together;
    for (int64_t begin = item_.head_begin; begin < item_.head_end; begin += group) {
      RunHeads(begin, begin + group < item_.head_end ? begin + group : item_.head_end, sums);
    }
  }

 private:
  using Kv = typename Products::Kv;
  using Weight = typename Products::Weight;

  void RunHeads(int64_t begin, int64_t end, AttentionSums* sums) {
    first_head_ = begin;
    heads_ = static_cast<int>(end - begin);
    for (int64_t head = begin; head < end; ++head) {
      const int64_t first_head = head * (args_.heads / args_.kv_heads);
      for (int i = 0; i < tile_.queries; ++i) {
        const Query& query = queries_[i];
        q_[(head - begin) * tile_.queries + i] =
            args_.q + query.row * args_.q_stride + (first_head + query.head) * args_.head_dim;
      }
    }
    products_.SetQueries(q_, heads_, tile_.queries);
    SplitKv<Kv> kv = LocateSplit(begin, item_.split_begin);
    for (int32_t split = item_.split_begin; split < item_.split_end; ++split) {
      SplitKv<Kv> next;
      if (split + 1 < item_.split_end) {
        next = LocateSplit(begin, split + 1);
      } else if (end < item_.head_end) {
        next = LocateSplit(end, item_.split_begin);
      }
      if (sums != nullptr) {
        const int64_t of_split = (split - item_.split_begin) * (item_.head_end - item_.head_begin) +
                                 begin - item_.head_begin;
        SumSplit(kv, split, next, sums + of_split * tile_.queries);
      } else if (split == tile_.first_split) {
        SumSplit(kv, split, next, sums_);
      } else {
        SumSplit(kv, split, next, split_sums_);
        for (int i = 0; i < heads_ * tile_.queries; ++i) {
          AddSplit(queries_[i % tile_.queries], split, split_sums_[i], args_.head_dim, &sums_[i]);
        }
      }
      kv = next;
    }
    if (sums != nullptr) return;
    for (int i = 0; i < heads_ * tile_.queries; ++i) {
      Finish(args_, queries_[i % tile_.queries], begin + i / tile_.queries, sums_[i]);
    }
  }

  SplitKv<Kv> LocateSplit(int64_t head, int32_t split) const {
    Visible all = SeenBy(queries_[0], split);
    for (int i = 1; i < tile_.queries; ++i) all = Union(all, SeenBy(queries_[i], split));
    return Locate<Kv>(args_, tile_, head, split, all);
  }

  void SumSplit(const SplitKv<Kv>& kv, int32_t split, const SplitKv<Kv>& next,
                AttentionSums* sums) {
    Visible visible[kTileQueries];
    Visible all{0, 0};
    int latest_begin = 0, earliest_end = kSplitTokens;
    for (int i = 0; i < tile_.queries; ++i) {
      visible[i] = SeenBy(queries_[i], split);
      all = Union(all, visible[i]);
      latest_begin = visible[i].begin > latest_begin ? visible[i].begin : latest_begin;
      earliest_end = visible[i].end < earliest_end ? visible[i].end : earliest_end;
    }
    // A token that one query attends to and another must not see takes part with weight zero, which
    // changes nothing unless its V is no number. Queries of several rows come with one head alone.
    if (FiniteValues(kv, earliest_end, all.end, args_.head_dim) &&
        FiniteValues(kv, all.begin, latest_begin, args_.head_dim)) {
      SumQueries(kv, visible, tile_.queries, all.end, next, sums);
      return;
    }
    for (int i = 0; i < tile_.queries; ++i) {
      products_.SetQueries(q_ + i, 1, 1);
      SumQueries(Locate<Kv>(args_, tile_, first_head_, split, visible[i]), visible + i, 1,
                 visible[i].end, {}, sums + i);
    }
    products_.SetQueries(q_, 1, tile_.queries);
  }

  // Of the `count` queries a head of products_.
  void SumQueries(const SplitKv<Kv>& kv, const Visible* visible, int count, int tokens,
                  const SplitKv<Kv>& next, AttentionSums* sums) {
    products_.Scores(kv, scores_);
    const int blocks_ahead = BlocksAhead(count);
    for (int head = 0; head < heads_; ++head) {
      int fetched = 0;
      for (int i = 0; i < count; ++i) {
        for (; fetched < kv.blocks && fetched * count < blocks_ahead * (i + 1); ++fetched) {
          Prefetch(kv.V(fetched, head), kv.head_elements);
        }
        const int query = head * count + i;
        WeighScores(scores_[query], args_.scale, visible[i], kv.blocks, weights_[query],
                    &sums[query]);
      }
    }
    products_.Values(kv, tokens, weights_, next, sums);
  }

  const PagedAttentionArgs& args_;
  const AttentionTile& tile_;
  const AttentionItem& item_;
  Query queries_[kTileQueries];
  int64_t first_head_ = 0;
  int heads_ = 0;                 // Whose queries products_ has, ...
  const float* q_[kTileQueries];  // ... [head][query]; so are all below.
  Products products_;
  alignas(64) float scores_[kTileQueries][kSplitTokens];
  alignas(64) Weight weights_[kTileQueries][kSplitTokens];
  AttentionSums sums_[kTileQueries];
  AttentionSums split_sums_[kTileQueries];
};

}  // namespace

void PagedAttentionItem(const PagedAttentionArgs& args, const AttentionTile& tile,
                        const AttentionItem& item, AttentionSums* sums) {
#if defined(__AVX512BF16__)
  ItemRun<Bf16Products>(args, tile, item).Run(sums);
#else
  if (args.kv_dtype == DType::kF32) {
    ItemRun<FmaProducts<float> >(args, tile, item).Run(sums);
  } else {
    ItemRun<FmaProducts<Bf16> >(args, tile, item).Run(sums);
  }
#endif
}

void PagedAttentionMerge(const PagedAttentionArgs& args, const AttentionTile& tile,
                         const AttentionMerge& merge, const AttentionSums* sums,
                         AttentionSums* into) {
  const Query query = QueryAt(args, tile, merge.query);
  for (int32_t split = merge.split_begin; split < merge.split_end; ++split, sums += merge.stride) {
    AddSplit(query, split, *sums, args.head_dim, into);
  }
  if (merge.split_end == tile.first_split + tile.splits) {
    Finish(args, query, merge.head, *into);
  }
}

}  // namespace lynx::kernels::LYNX_KERNEL_ISA
