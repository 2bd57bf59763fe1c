#include "services/router/placement/prefix_index.h"

#include <random>
#include <vector>

#include "common/kv/prefix_ledger.h"
#include "gtest/gtest.h"

namespace lynx::router {
namespace {

using Heard = PrefixIndex::Heard;

constexpr NodeId kNode = 3;

proto::PrefixReport ToWire(const kv::PrefixLedger::Report& report) {
  proto::PrefixReport wire;
  wire.set_from(report.from);
  wire.set_to(report.to);
  wire.mutable_added()->Add(report.added.begin(), report.added.end());
  wire.mutable_removed()->Add(report.removed.begin(), report.removed.end());
  wire.set_digest(report.digest);
  return wire;
}

class PrefixIndexTest : public ::testing::Test {
 protected:
  Heard Report() { return index_.OnReport(kNode, ToWire(ledger_.Since(index_.Seen(kNode)))); }
  int64_t Held(const std::vector<kv::PrefixHash>& prompt) {
    return index_.HeldTokens(kNode, prompt);
  }

  kv::PrefixLedger ledger_;
  PrefixIndex index_;
};

TEST_F(PrefixIndexTest, KnowsTheLongestPrefixThatANodeHolds) {
  EXPECT_EQ(Held({1, 2, 3}), 0);
  for (const uint64_t prefix : {1, 2, 3, 9}) ledger_.Add(prefix);
  EXPECT_EQ(Report(), Heard::kApplied);
  EXPECT_EQ(Held({1, 2, 3, 4}), 48);
  EXPECT_EQ(Held({1, 2, 8, 9}), 32) << "what comes behind a hole is of no use";
  EXPECT_EQ(Held({8, 9}), 0);
  EXPECT_EQ(index_.HeldTokens(kNode + 1, std::vector<kv::PrefixHash>{1}), 0);
  ledger_.Remove(3);
  EXPECT_EQ(Report(), Heard::kApplied);
  EXPECT_EQ(Held({1, 2, 3, 4}), 32);
  EXPECT_EQ(index_.size(), 3u);
  index_.OnGone(kNode);
  EXPECT_EQ(Held({1}), 0);
  EXPECT_EQ(index_.size(), 0u);
}

TEST_F(PrefixIndexTest, ADoubledReportIsHarmlessAndAMissingOneIsAskedForAgain) {
  ledger_.Add(1);
  Report();
  ledger_.Add(2);
  const proto::PrefixReport second = ToWire(ledger_.Since(1));
  ledger_.Remove(1);
  const proto::PrefixReport third = ToWire(ledger_.Since(2));
  EXPECT_EQ(index_.OnReport(kNode, third), Heard::kStale) << "the second is missing";
  EXPECT_EQ(index_.Seen(kNode), 1u);
  EXPECT_EQ(index_.OnReport(kNode, second), Heard::kApplied);
  EXPECT_EQ(index_.OnReport(kNode, second), Heard::kApplied);
  EXPECT_EQ(index_.OnReport(kNode, third), Heard::kApplied);
  EXPECT_EQ(index_.OnReport(kNode, second), Heard::kStale) << "late";
  EXPECT_EQ(index_.Seen(kNode), 3u);
  EXPECT_EQ(Held({2}), 16);
  EXPECT_EQ(Held({1}), 0);
}

TEST_F(PrefixIndexTest, DriftIsFoundAndMended) {
  ledger_.Add(1);
  Report();
  proto::PrefixReport wrong = ToWire(ledger_.Since(1));
  wrong.add_added(5);  // A bit that flipped, say.
  EXPECT_EQ(index_.OnReport(kNode, wrong), Heard::kDrift);
  EXPECT_EQ(index_.Seen(kNode), 0u) << "from here on it asks for everything";
  EXPECT_EQ(Report(), Heard::kApplied);
  EXPECT_EQ(Held({1}), 16);
  EXPECT_EQ(Held({5}), 0);
}

TEST_F(PrefixIndexTest, ANodeThatReportsTooMuchIsNotFollowed) {
  proto::PrefixReport report;
  for (uint64_t i = 0; i <= kv::PrefixLedger::kMaxPrefixes; ++i) report.add_added(i);
  EXPECT_EQ(index_.OnReport(kNode, report), Heard::kMalformed);
  // Little by little, too.
  kv::PrefixHash next = 1;
  uint64_t digest = 0;
  const auto more = [&](size_t count) {
    report.Clear();
    report.set_from(index_.Seen(kNode));
    for (size_t i = 0; i < count; ++i) {
      digest ^= kv::PrefixDigest({&next, 1});
      report.add_added(next++);
    }
    report.set_to(report.from() + count);
    report.set_digest(digest);
    return index_.OnReport(kNode, report);
  };
  EXPECT_EQ(more(kv::PrefixLedger::kMaxPrefixes - 1), Heard::kApplied);
  EXPECT_EQ(more(1), Heard::kApplied);
  EXPECT_EQ(more(1), Heard::kMalformed);
  EXPECT_EQ(index_.size(), 0u);
}

// Reports that are lost, doubled and late: as soon as one comes through, the index is right.
TEST_F(PrefixIndexTest, FollowsThroughABadConnection) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  std::vector<proto::PrefixReport> under_way;
  uint64_t told = 0;
  for (int event = 0; event < 20000; ++event) {
    const uint64_t prefix = random() % 64;
    switch (random() % 4) {
      case 0:
        ledger_.Add(prefix);
        break;
      case 1:
        ledger_.Remove(prefix);
        break;
      case 2:
        if (random() % 4 == 0) told = index_.Seen(kNode);  // A Ping.
        under_way.push_back(ToWire(ledger_.Since(told)));
        told = under_way.back().to();
        break;
      default:
        if (under_way.empty()) break;
        const size_t which = random() % std::min<size_t>(under_way.size(), 3);
        ASSERT_NE(index_.OnReport(kNode, under_way[which]), Heard::kMalformed);
        if (random() % 3 != 0) {
          under_way.erase(under_way.begin() + static_cast<std::ptrdiff_t>(which));
        }
    }
  }
  ASSERT_EQ(Report(), Heard::kApplied);
  for (uint64_t prefix = 0; prefix < 64; ++prefix) {
    const auto all = ledger_.Since(0).added;
    EXPECT_EQ(Held({prefix}) > 0, std::find(all.begin(), all.end(), prefix) != all.end());
  }
}

}  // namespace
}  // namespace lynx::router
