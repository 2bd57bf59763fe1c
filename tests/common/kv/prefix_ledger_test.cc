#include "common/kv/prefix_ledger.h"

#include <random>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx::kv {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

TEST(PrefixLedgerTest, TellsWhatHasChangedSince) {
  PrefixLedger ledger;
  EXPECT_EQ(ledger.Since(0).to, 0u);
  ledger.Add(1);
  ledger.Add(2);
  const PrefixLedger::Report all = ledger.Since(0);
  EXPECT_EQ(all.from, 0u);
  EXPECT_EQ(all.to, 2u);
  EXPECT_THAT(all.added, UnorderedElementsAre(1, 2));
  EXPECT_EQ(all.digest, PrefixDigest(std::vector<PrefixHash>{2, 1}));
  ledger.Add(3);
  ledger.Remove(1);
  ledger.Add(4);
  ledger.Remove(4);
  const PrefixLedger::Report news = ledger.Since(2);
  EXPECT_EQ(news.from, 2u);
  EXPECT_EQ(news.to, 6u);
  EXPECT_THAT(news.added, ElementsAre(3));
  EXPECT_THAT(news.removed, UnorderedElementsAre(1, 4));
  EXPECT_EQ(news.digest, PrefixDigest(std::vector<PrefixHash>{2, 3}));
  EXPECT_THAT(ledger.Since(6).added, IsEmpty());
}

TEST(PrefixLedgerTest, APrefixIsThereUntilItIsRemovedAsOftenAsAdded) {
  PrefixLedger ledger;
  ledger.Add(7);  // Of exact blocks,
  ledger.Add(7);  // and of lossy ones.
  ledger.Remove(7);
  EXPECT_THAT(ledger.Since(0).added, ElementsAre(7));
  ledger.Remove(7);
  EXPECT_THAT(ledger.Since(0).added, IsEmpty());
  EXPECT_EQ(ledger.Since(0).digest, 0u);
}

TEST(PrefixLedgerTest, WhoIsTooFarBehindHearsEverything) {
  PrefixLedger ledger;
  ledger.Add(1);
  for (uint64_t i = 0; i < PrefixLedger::kMaxChanges / 2; ++i) {
    ledger.Add(100);
    ledger.Remove(100);
  }
  EXPECT_EQ(ledger.Since(1).from, 1u);
  ledger.Add(2);
  EXPECT_EQ(ledger.Since(1).from, 0u) << "change 2 is forgotten";
  EXPECT_THAT(ledger.Since(1).added, UnorderedElementsAre(1, 2));
  EXPECT_EQ(ledger.Since(ledger.changes() + 1).from, 0u) << "of another life of the node";
}

TEST(PrefixLedgerTest, HoldsNoMoreThanItsBound) {
  PrefixLedger ledger;
  for (uint64_t i = 1; i <= PrefixLedger::kMaxPrefixes + 10; ++i) ledger.Add(i);
  EXPECT_THAT(ledger.Since(0).added, SizeIs(PrefixLedger::kMaxPrefixes));
  const uint64_t changes = ledger.changes();
  ledger.Remove(PrefixLedger::kMaxPrefixes + 5);
  EXPECT_EQ(ledger.changes(), changes) << "it was left out";
}

}  // namespace
}  // namespace lynx::kv
