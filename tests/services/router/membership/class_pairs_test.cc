#include "services/router/membership/class_pairs.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx::router {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ClassPairsTest : public ::testing::Test {
 protected:
  ClassPairsTest() : table_({}) {}

  void Add(proto::Role role, const std::string& numeric_class,
           proto::NodeState state = proto::NODE_STATE_READY, const std::string& hash = "h",
           int32_t prompt_rows = 0) {
    const std::string endpoint = absl::StrCat("n:", ++nodes_);
    table_.Add(endpoint, role);
    proto::NodeStatus status;
    status.set_role(role);
    status.set_state(state);
    status.set_compatibility_hash(hash);
    status.set_numeric_class(numeric_class);
    status.set_prompt_rows(prompt_rows);
    std::vector<NodeTable::Event> events;
    table_.OnStatus(endpoint, nodes_, status, clock_.Now(), events);
  }
  void Prefill(const std::string& numeric_class) { Add(proto::ROLE_PREFILL, numeric_class); }
  void Decode(const std::string& numeric_class) { Add(proto::ROLE_DECODE, numeric_class); }
  void Both(const std::string& numeric_class) {
    Add(proto::ROLE_DECODE, numeric_class, proto::NODE_STATE_READY, "h", 64);
  }
  // As "prefill>decode", and how many of each.
  std::vector<std::string> Pairs() {
    std::vector<std::string> names;
    for (const ClassPair& pair : ClassPairs(table_, [](const Member&) { return true; })) {
      names.push_back(absl::StrCat(std::string(pair.prefill_class), ">",
                                   std::string(pair.decode_class), " ", pair.prefill.size(), ",",
                                   pair.decode.size()));
    }
    return names;
  }

  ManualClock clock_;
  NodeTable table_;
  uint64_t nodes_ = 0;
};

TEST_F(ClassPairsTest, ThereIsNoneWithoutBothSides) {
  EXPECT_THAT(Pairs(), IsEmpty());
  Prefill("amx");
  EXPECT_THAT(Pairs(), IsEmpty());
  Add(proto::ROLE_DECODE, "amx", proto::NODE_STATE_LOADING);
  Add(proto::ROLE_DECODE, "amx", proto::NODE_STATE_READY, "another model");
  EXPECT_THAT(Pairs(), IsEmpty());
  Decode("amx");
  EXPECT_THAT(Pairs(), ElementsAre("amx>amx 1,1"));
}

TEST_F(ClassPairsTest, EqualClassesComeBeforeMoreNodesBeforeNames) {
  for (int i = 0; i < 3; ++i) Prefill("b");
  for (int i = 0; i < 3; ++i) Decode("c");
  Prefill("a");
  Decode("a");
  EXPECT_THAT(Pairs(), ElementsAre("a>a 1,1", "b>c 3,3", "a>c 1,3", "b>a 3,1"));
}

TEST_F(ClassPairsTest, DecodeNodesThatTakePromptsAreAPairOfTheirOwnClass) {
  Both("a");
  Both("b");
  Both("b");
  Decode("c");
  EXPECT_THAT(Pairs(), ElementsAre("b>b 0,2", "a>a 0,1"));
  const auto pairs = ClassPairs(table_, [](const Member&) { return true; });
  EXPECT_TRUE(pairs[0].ready());
  EXPECT_TRUE(pairs[0].Local(*pairs[0].decode[0]));
}

TEST_F(ClassPairsTest, PairsWithPrefillNodesComeBeforeThoseWithout) {
  for (int i = 0; i < 3; ++i) Both("b");
  Prefill("a");
  EXPECT_THAT(Pairs(), ElementsAre("a>b 1,3", "b>b 0,3"));
  Prefill("b");
  EXPECT_THAT(Pairs(), ElementsAre("b>b 1,3", "a>b 1,3"));
  const auto pairs = ClassPairs(table_, [](const Member&) { return true; });
  EXPECT_TRUE(pairs[0].Local(*pairs[0].decode[0]));
  EXPECT_FALSE(pairs[1].Local(*pairs[1].decode[0])) << "prompts of this pair have the bits of a";
}

TEST_F(ClassPairsTest, TheOrderOfJoiningChangesNothing) {
  Decode("b");
  Prefill("b");
  Decode("a");
  Prefill("a");
  EXPECT_THAT(Pairs(), ElementsAre("a>a 1,1", "b>b 1,1", "a>b 1,1", "b>a 1,1"));
}

TEST_F(ClassPairsTest, ASuspectNodeCountsButIsNotReady) {
  Prefill("a");
  Decode("a");
  std::vector<NodeTable::Event> events;
  for (int i = 0; i < 4; ++i) {
    table_.Tick(clock_.Now(), events);
    clock_.Advance(absl::Milliseconds(500));
  }
  table_.Tick(clock_.Now(), events);
  const auto pairs = ClassPairs(table_, [](const Member&) { return true; });
  ASSERT_EQ(pairs.size(), 1u);
  EXPECT_FALSE(pairs[0].ready());
  Prefill("a");
  Decode("a");
  EXPECT_TRUE(ClassPairs(table_, [](const Member&) { return true; })[0].ready());
}

TEST_F(ClassPairsTest, OnlyNodesThatAreTakenCount) {
  Prefill("a");
  Decode("a");
  Decode("b");
  const auto pairs = ClassPairs(table_, [](const Member& member) {
    return member.role == proto::ROLE_PREFILL || member.status.numeric_class() == "b";
  });
  ASSERT_EQ(pairs.size(), 1u);
  EXPECT_EQ(pairs[0].decode_class, "b");
}

}  // namespace
}  // namespace lynx::router
