#include "common/kv/prefix_cache.h"

#include <map>
#include <random>
#include <string>
#include <vector>

#include "common/base/mix.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx::kv {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<TokenId> Tokens(int32_t count, TokenId first = 0) {
  std::vector<TokenId> tokens;
  for (int32_t i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}

std::vector<TokenId> Join(std::vector<TokenId> a, const std::vector<TokenId>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

constexpr int32_t kAll = 1 << 30;

class PrefixCacheTest : public ::testing::Test {
 protected:
  // As a sequence computes `tokens` and ends: what blocks it had.
  std::vector<BlockId> Compute(const std::vector<TokenId>& tokens, int32_t exact_tokens = kAll,
                               PrefixHash root = kRoot) {
    auto table = BlockTable::Acquire(pool_, 0, static_cast<int64_t>(tokens.size()));
    EXPECT_TRUE(table.ok()) << table.status();
    cache_.Keep(root, tokens, exact_tokens, *table);
    return {table->blocks().begin(), table->blocks().end()};
  }
  int32_t Held(const std::vector<TokenId>& tokens, bool lossy_too = false,
               PrefixHash root = kRoot) {
    return cache_.Find(root, tokens, lossy_too).blocks.end_block();
  }

  static constexpr PrefixHash kRoot = 77;
  BlockPool pool_{8};
  PrefixCache cache_{pool_};
};

TEST(PrefixCachesTest, OfOneLedgerTellOfAPrefixWhileAnyHoldsIt) {
  PrefixLedger ledger;
  BlockPool pools[2] = {BlockPool(4), BlockPool(4)};
  PrefixCache caches[2] = {PrefixCache(pools[0], &ledger), PrefixCache(pools[1], &ledger)};
  for (int i = 0; i < 2; ++i) {
    const auto table = BlockTable::Acquire(pools[i], 0, 40);
    ASSERT_TRUE(table.ok());
    caches[i].Keep(/*root=*/77, Tokens(40), kAll, *table);
  }
  EXPECT_EQ(ledger.Since(0).added.size(), 2u);
  EXPECT_EQ(ledger.changes(), 2u);
  ASSERT_TRUE(BlockTable::Acquire(pools[0], 0, 64).ok());  // Takes what was kept.
  EXPECT_EQ(caches[0].size(), 0u);
  EXPECT_EQ(ledger.changes(), 2u);
  ASSERT_TRUE(BlockTable::Acquire(pools[1], 0, 64).ok());
  EXPECT_EQ(ledger.Since(0).added.size(), 0u);
}

TEST_F(PrefixCacheTest, FindsTheLongestPrefixInWholeBlocks) {
  EXPECT_TRUE(cache_.Find(kRoot, Tokens(40), false).blocks.empty());
  const std::vector<BlockId> blocks = Compute(Tokens(40));
  const BlockTable held = cache_.Find(kRoot, Tokens(60), false).blocks;
  EXPECT_THAT(held.group(0), ElementsAre(blocks[0], blocks[1]));
  EXPECT_EQ(Held(Join(Tokens(20), Tokens(20, 500))), 1) << "they part in the second block";
  EXPECT_EQ(Held(Tokens(40, 500)), 0);
  EXPECT_EQ(Held(Tokens(32)), 1) << "one token is left to compute";
  EXPECT_EQ(Held(Tokens(33)), 2);
}

TEST_F(PrefixCacheTest, HashesFindTheSameBlocks) {
  Compute(Tokens(40), kAll, RootPrefix("a"));
  const std::vector<PrefixHash> hashes = PrefixHashes("a", Tokens(80));
  EXPECT_EQ(hashes.size(), 5u);
  EXPECT_EQ(cache_.Find(hashes, false).blocks.end_block(), 2);
  EXPECT_TRUE(cache_.Find(std::span(hashes).subspan(1), false).blocks.empty())
      << "no block comes first";
}

// Blocks of 16 tokens whose hash after `root` is that of `other`: of any 14, the last two can be
// chosen so.
std::vector<TokenId> Colliding(PrefixHash root, const std::vector<TokenId>& other, TokenId first) {
  std::vector<TokenId> tokens = Tokens(kBlockTokens, first);
  const auto before_last = [&](const std::vector<TokenId>& block) {
    uint64_t hash = root;
    for (size_t i = 0; i + 2 < kBlockTokens; i += 2) {
      hash = SplitMix(hash ^ (static_cast<uint64_t>(static_cast<uint32_t>(block[i])) << 32 |
                              static_cast<uint32_t>(block[i + 1])));
    }
    return hash;
  };
  const uint64_t last = static_cast<uint64_t>(static_cast<uint32_t>(other[14])) << 32 |
                        static_cast<uint32_t>(other[15]);
  const uint64_t chosen = last ^ before_last(other) ^ before_last(tokens);
  tokens[14] = static_cast<TokenId>(chosen >> 32);
  tokens[15] = static_cast<TokenId>(chosen & 0xffffffff);
  return tokens;
}

TEST_F(PrefixCacheTest, PromptsOfOneHashAreToldApartByTheirTokens) {
  const std::vector<TokenId> mine = Tokens(kBlockTokens);
  const std::vector<TokenId> other = Colliding(kRoot, mine, 300);
  ASSERT_EQ(NextPrefix(kRoot, mine), NextPrefix(kRoot, other));
  Compute(mine);
  EXPECT_EQ(Held(Join(mine, Tokens(1))), 1);
  EXPECT_EQ(Held(Join(other, Tokens(1))), 0);
  Compute(other);
  EXPECT_EQ(Held(Join(other, Tokens(1))), 0) << "not kept while another has its hash";
  const PrefixHash hash = NextPrefix(kRoot, other);
  const PrefixCache::Found found = cache_.Find(std::span(&hash, 1), false);
  EXPECT_EQ(found.blocks.end_block(), 1);
  EXPECT_EQ(found.tokens, mine) << "as whoever asks by the hash must find out";
}

TEST_F(PrefixCacheTest, SaysHowMuchOfAPrefixIsExact) {
  Compute(Tokens(48), /*exact_tokens=*/20);
  EXPECT_EQ(cache_.Find(kRoot, Tokens(49), true).exact_tokens, 16);
  EXPECT_EQ(cache_.Find(kRoot, Tokens(49), false).exact_tokens, 16);
  Compute(Tokens(48));
  EXPECT_EQ(cache_.Find(kRoot, Tokens(49), true).exact_tokens, 48);
}

TEST_F(PrefixCacheTest, WhatOnlyTheCacheHoldsIsFree) {
  Compute(Tokens(48));
  EXPECT_EQ(pool_.free_blocks(), 8);
  BlockTable held = cache_.Find(kRoot, Tokens(40), false).blocks;
  BlockTable again = cache_.Find(kRoot, Tokens(40), false).blocks;
  EXPECT_EQ(pool_.free_blocks(), 6) << "held twice, there once";
  held.Reset();
  EXPECT_EQ(pool_.free_blocks(), 6);
  again.Reset();
  EXPECT_EQ(pool_.free_blocks(), 8);
}

TEST_F(PrefixCacheTest, WhoNeedsBlocksGetsThoseUsedLongestAgo) {
  Compute(Tokens(32));
  Compute(Tokens(48, 500));
  EXPECT_EQ(Held(Tokens(33)), 2);  // Used last.
  auto four = BlockTable::Acquire(pool_, 0, 64);
  ASSERT_TRUE(four.ok());
  EXPECT_EQ(Held(Tokens(33)), 2);
  EXPECT_EQ(Held(Tokens(49, 500)), 2) << "from its end";
  auto more = BlockTable::Acquire(pool_, 0, 48);
  ASSERT_TRUE(more.ok());
  EXPECT_EQ(Held(Tokens(33)), 0) << "the other was used last";
  EXPECT_EQ(Held(Tokens(49, 500)), 1);
  EXPECT_EQ(pool_.free_blocks(), 1);
}

TEST_F(PrefixCacheTest, WhatSequencesHoldIsNotGivenAway) {
  Compute(Tokens(48));
  const BlockTable held = cache_.Find(kRoot, Tokens(33), false).blocks;
  EXPECT_EQ(pool_.free_blocks(), 6);
  const auto rest = BlockTable::Acquire(pool_, 0, 6 * kBlockTokens);
  ASSERT_TRUE(rest.ok());
  for (const BlockId mine : held.blocks()) {
    for (const BlockId other : rest->blocks()) EXPECT_NE(mine, other);
  }
  EXPECT_FALSE(BlockTable::Acquire(pool_, 0, 1).ok());
}

TEST_F(PrefixCacheTest, ExactSequencesGetExactBlocksOnly) {
  Compute(Tokens(48), /*exact_tokens=*/20);
  EXPECT_EQ(Held(Tokens(49)), 1);
  EXPECT_EQ(Held(Tokens(49), /*lossy_too=*/true), 3);
  Compute(Tokens(48));
  EXPECT_EQ(Held(Tokens(49)), 3) << "computed again, exactly";
  EXPECT_EQ(Held(Tokens(49), /*lossy_too=*/true), 3);
}

TEST_F(PrefixCacheTest, PromptsOfOtherSaltsShareNothing) {
  Compute(Tokens(48), kAll, RootPrefix("tenant a"));
  EXPECT_EQ(Held(Tokens(48), false, RootPrefix("tenant a")), 2);
  EXPECT_EQ(Held(Tokens(48), false, RootPrefix("tenant b")), 0);
  EXPECT_EQ(Held(Tokens(48), false, RootPrefix("")), 0);
}

TEST_F(PrefixCacheTest, TwoThatComputedTheSameKeepItOnce) {
  const std::vector<BlockId> first = Compute(Tokens(32));
  auto mine = BlockTable::Acquire(pool_, 0, 32);
  ASSERT_TRUE(mine.ok());
  cache_.Keep(kRoot, Tokens(32), kAll, *mine);
  mine->Reset();
  EXPECT_THAT(cache_.Find(kRoot, Tokens(33), false).blocks.group(0),
              ElementsAre(first[0], first[1]));
  EXPECT_EQ(pool_.free_blocks(), 8);
}

TEST_F(PrefixCacheTest, ASharedPrefixGrowsByBlocksOfItsOwn) {
  const std::vector<BlockId> blocks = Compute(Tokens(32));
  BlockTable table = cache_.Find(kRoot, Tokens(40), false).blocks;
  ASSERT_TRUE(table.Extend(pool_, 60).ok());
  ASSERT_EQ(table.end_block(), 4);
  EXPECT_EQ(table.group(0)[0], blocks[0]);
  EXPECT_EQ(table.group(0)[1], blocks[1]);
  cache_.Keep(kRoot, Tokens(60), kAll, table);
  table.Reset();
  EXPECT_EQ(Held(Tokens(60)), 3);
  EXPECT_EQ(pool_.free_blocks(), 8);
}

// Layers 0 and 2 see everything, 1 and 3 the last 20 tokens.
TEST(PrefixCacheWindowTest, ALayerWithAWindowNeedsOnlyThatBeforeTheEnd) {
  const std::vector<Reach> layers = {{}, {.window = 20}, {}, {.window = 20}};
  BlockPool pool(40, KvGroups(layers));
  PrefixCache cache(pool);
  const PrefixHash root = RootPrefix("");
  {
    auto table = BlockTable::Acquire(pool, 0, 160);
    ASSERT_TRUE(table.ok());
    table->ReleaseBefore(160);  // As a sequence that has computed them gives back.
    cache.Keep(root, Tokens(160), kAll, *table);
  }
  EXPECT_EQ(cache.Find(root, Tokens(161), false).blocks.end_block(), 10);
  EXPECT_EQ(cache.Find(root, Tokens(160), false).blocks.end_block(), 0)
      << "the window before 144 is gone";
  EXPECT_EQ(pool.free_blocks(), 40);
  BlockTable held = cache.Find(root, Tokens(200), false).blocks;
  EXPECT_EQ(pool.free_blocks(), 40 - 10 - 2);
  held.ReleaseBefore(160 + 20);
  EXPECT_EQ(pool.free_blocks(), 40 - 10);
  // What the windows have passed can be had, though the other layers still hold their part.
  auto rest = BlockTable::Acquire(pool, 0, 15 * kBlockTokens);
  ASSERT_TRUE(rest.ok()) << rest.status();
  EXPECT_EQ(pool.free_blocks(), 0);
  rest->Reset();
  held.Reset();
  EXPECT_EQ(pool.free_blocks(), 40);
}

// Many sequences at random; a block's content is what its holder has written there.
TEST(PrefixCacheRandomTest, WhatIsFoundIsWhatWasComputed) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (const bool windows : {false, true}) {
    const std::vector<Reach> layers = {{}, {.window = 20}};
    BlockPool pool(48, windows ? KvGroups(layers) : KvGroups());
    PrefixCache cache(pool);
    std::map<std::pair<int32_t, BlockId>, std::vector<TokenId>> content;  // By group and block.
    struct Running {
      std::vector<TokenId> tokens;
      BlockTable table;
    };
    std::vector<Running> running;
    for (int event = 0; event < 4000; ++event) {
      if (random() % 2 == 0 || running.empty()) {
        // Few distinct tokens a block, so that prompts often begin alike.
        std::vector<TokenId> tokens;
        for (int block = static_cast<int>(random() % 6) + 1; block > 0; --block) {
          const auto token = static_cast<TokenId>(random() % 2);
          for (int i = 0; i < kBlockTokens; ++i) tokens.push_back(token);
        }
        tokens.push_back(9);
        BlockTable table = cache.Find(1, tokens, false).blocks;
        const int32_t held = table.end_block();
        for (int32_t g = 0; g < pool.groups().count(); ++g) {
          for (int32_t i = pool.groups().FirstBlock(g, held * kBlockTokens); i < held; ++i) {
            const std::vector<TokenId> prefix(tokens.begin(),
                                              tokens.begin() + (i + 1) * kBlockTokens);
            ASSERT_EQ((content[{g, table.group(g)[static_cast<size_t>(i)]}]), prefix);
          }
        }
        if (!table.Extend(pool, static_cast<int64_t>(tokens.size())).ok()) continue;
        for (int32_t g = 0; g < pool.groups().count(); ++g) {
          for (int32_t i = held; i < table.end_block(); ++i) {
            const auto end =
                std::min<size_t>(tokens.size(), static_cast<size_t>(i + 1) * kBlockTokens);
            content[{g, table.group(g)[static_cast<size_t>(i)]}] = {
                tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(end)};
          }
        }
        running.push_back({std::move(tokens), std::move(table)});
        continue;
      }
      const size_t index = random() % running.size();
      Running& one = running[index];
      one.table.ReleaseBefore(static_cast<int32_t>(one.tokens.size()));
      if (random() % 4 != 0) cache.Keep(1, one.tokens, kAll, one.table);
      running.erase(running.begin() + static_cast<std::ptrdiff_t>(index));
    }
    running.clear();
    EXPECT_EQ(pool.free_blocks(), 48);
    EXPECT_TRUE(BlockTable::Acquire(pool, 0, (windows ? 24 : 48) * kBlockTokens).ok());
  }
}

}  // namespace
}  // namespace lynx::kv
