// Communicators of the processor: the contract, and what happens when ranks are lost.
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/collective/gloo_communicator.h"
#include "common/collective/memory_rendezvous.h"
#include "common/collective/solo_communicator.h"
#include "common/collective/thread_communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/collective/communicator_contract.h"
#include "tests/support/status_matchers.h"

namespace lynx::collective::testing {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;

Group MakeSolo(int, absl::Duration) {
  Group group;
  group.push_back(std::make_unique<SoloCommunicator>());
  return group;
}

Group MakeGloo(int size, absl::Duration timeout) {
  Group group(static_cast<size_t>(size));
  MemoryRendezvous rendezvous;
  OnEachRank(size, [&](int rank) {
    auto made =
        GlooCommunicator::Connect({.rank = rank, .size = size, .timeout = timeout}, rendezvous);
    ASSERT_THAT(made, IsOk());
    group[static_cast<size_t>(rank)] = *std::move(made);
  });
  return group;
}

const Case kMany[] = {{"Thread", 2, &ThreadCommunicator::MakeGroup},
                      {"Thread", 3, &ThreadCommunicator::MakeGroup},
                      {"Thread", 8, &ThreadCommunicator::MakeGroup},
                      {"Gloo", 2, &MakeGloo},
                      {"Gloo", 3, &MakeGloo},
                      {"Gloo", 8, &MakeGloo}};
INSTANTIATE_TEST_SUITE_P(One, CommunicatorTest,
                         ::testing::Values(Case{"Solo", 1, &MakeSolo},
                                           Case{"Thread", 1, &ThreadCommunicator::MakeGroup},
                                           Case{"Gloo", 1, &MakeGloo}),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(Many, CommunicatorTest, ::testing::ValuesIn(kMany), CaseName);

// What happens to the others when one rank does not do its part.
class LostRankTest : public CommunicatorTest {};

TEST_P(LostRankTest, AnAbortReachesEveryRank) {
  Make();
  OnEach([&](Communicator& ranks) {
    ASSERT_THAT(ranks.Barrier(), IsOk());
    if (ranks.rank() == 0) return ranks.Abort(absl::CancelledError("enough"));
    // Whether it waits already or not.
    EXPECT_THAT(ranks.Barrier(), StatusIs(absl::StatusCode::kUnavailable));
    EXPECT_THAT(ranks.Barrier(), StatusIs(absl::StatusCode::kUnavailable)) << "no second try";
  });
}

TEST_P(LostRankTest, AnAbortEndsTheCallThatIsWaiting) {
  Make();
  // Rank 0 waits for the others, which do nothing.
  std::thread waiting([&] {
    std::vector<float> values(100'000);
    EXPECT_THAT(At(0).AllReduceSum(values),
                StatusIs(absl::StatusCode::kCancelled, HasSubstr("enough")));
  });
  At(0).Abort(absl::CancelledError("enough"));
  waiting.join();
}

TEST_P(LostRankTest, AbortsOfTwoBusyGroupsFromOneThreadEndBoth) {
  Group groups[] = {GetParam().make(size(), absl::Seconds(60)),
                    GetParam().make(size(), absl::Seconds(60))};
  // All ranks but the last wait in both, which it never joins.
  std::vector<std::thread> waiting;
  for (size_t g = 0; g < 2; ++g) {
    for (size_t rank = 0; rank + 1 < groups[g].size(); ++rank) {
      waiting.emplace_back([&, g, rank] {
        Communicator& ranks = *groups[g][rank];
        const std::vector<int64_t> bytes(groups[g].size(), 1000);
        std::vector<std::byte> out(1000 * bytes.size());
        std::vector<std::byte> in(out.size());
        std::vector<float> values(100'000);
        const absl::Status status =
            g == 0 ? ranks.AllReduceSum(values) : ranks.AllToAll(out, bytes, in, bytes);
        EXPECT_TRUE(absl::IsCancelled(status) || absl::IsUnavailable(status)) << status;
      });
    }
  }
  // As each rank does that hears of a loss.
  for (Group& group : groups) {
    for (auto& ranks : group) ranks->Abort(absl::CancelledError("enough"));
  }
  for (std::thread& thread : waiting) thread.join();
}

TEST_P(LostRankTest, ARankThatLeavesIsNoticed) {
  Make();
  OnEach([&](Communicator& ranks) {
    ASSERT_THAT(ranks.Barrier(), IsOk());
    if (ranks.rank() == 1) {
      group_[1].reset();
      return;
    }
    EXPECT_THAT(ranks.Barrier(), StatusIs(absl::StatusCode::kUnavailable));
  });
}

TEST_P(LostRankTest, ARankThatDoesNotComeIsNamed) {
  Make(absl::Milliseconds(200));
  OnEach([&](Communicator& ranks) {
    if (ranks.rank() == 1) return;
    const absl::Status status = ranks.Barrier();
    // The first to give up tells the others.
    EXPECT_TRUE(absl::IsDeadlineExceeded(status) || absl::IsUnavailable(status)) << status;
    if (absl::IsDeadlineExceeded(status)) {
      EXPECT_THAT(std::string(status.message()), ContainsRegex("in time: (.*, )?1( |,|$)"));
    }
  });
}

// Those that wait in another subgroup than the one that lost a rank, or for all.
TEST_P(LostRankTest, ALossInASubgroupIsThatOfAll) {
  for (const bool leaves : {false, true}) {
    Make(absl::Milliseconds(leaves ? 60'000 : 300));
    const auto mute = static_cast<size_t>(size() - 1);
    Group few(static_cast<size_t>(size()));
    OnEach([&](Communicator& ranks) {
      std::vector<int> members;
      for (int r = ranks.rank() % 2; r < size(); r += 2) members.push_back(r);
      const auto self = static_cast<size_t>(ranks.rank());
      few[self] = ranks.Subgroup(members);
      ASSERT_THAT(ranks.Barrier(), IsOk());
      if (self == mute) {
        few[mute].reset();
        if (leaves) group_[mute].reset();
        return;
      }
      absl::Status status = few[self]->Barrier();
      if (members.back() == static_cast<int>(mute)) {
        EXPECT_THAT(status, ::testing::Not(IsOk()));
      }
      if (status.ok()) status = ranks.Barrier();
      EXPECT_TRUE(absl::IsDeadlineExceeded(status) || absl::IsUnavailable(status)) << status;
      EXPECT_EQ(ranks.Barrier(), status) << "no second try";
    });
    few.clear();
  }
}

TEST_P(LostRankTest, WhatIsDoneStaysDone) {
  // A rank may leave as soon as its own call has returned.
  for (int round = 0; round < 5; ++round) {
    Make();
    OnEach([&](Communicator& ranks) {
      std::vector<float> ones(10, 1);
      EXPECT_THAT(ranks.AllReduceSum(ones), IsOk());
      EXPECT_THAT(ones, Each(static_cast<float>(size())));
      group_[static_cast<size_t>(ranks.rank())].reset();
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Many, LostRankTest, ::testing::ValuesIn(kMany), CaseName);

TEST(ExchangeCommunicatorTest, CountsWhatEachRankSendsTheOthers) {
  for (const auto& make : {&ThreadCommunicator::MakeGroup, &MakeGloo}) {
    const Group group = make(3, absl::Seconds(60));
    OnEachRank(3, [&](int rank) {
      auto& ranks = dynamic_cast<ExchangeCommunicator&>(*group[static_cast<size_t>(rank)]);
      std::vector<float> few(10);
      ASSERT_THAT(ranks.AllReduceSum(few), IsOk());
      int64_t sent = 2 * 40;  // All of it to both.
      EXPECT_EQ(ranks.sent_bytes(), sent);
      std::vector<float> many(30'000);
      ASSERT_THAT(ranks.AllReduceSum(many), IsOk());
      sent += 2 * 2 * 40'000;  // Of each a third, and the sum of this rank's third.
      EXPECT_EQ(ranks.sent_bytes(), sent);
      if (rank == 1) return;
      std::vector<std::byte> to(10);
      std::vector<std::byte> from(10);
      const std::vector<int64_t> bytes = {3, 7};
      std::vector<int64_t> received = {rank == 0 ? 3 : 7, rank == 0 ? 3 : 7};
      from.resize(static_cast<size_t>(received[0] + received[1]));
      ASSERT_THAT(ranks.Subgroup({0, 2})->AllToAll(to, bytes, from, received), IsOk());
      sent += rank == 0 ? 7 : 3;
      EXPECT_EQ(ranks.sent_bytes(), sent);
    });
  }
}

TEST(ThreadCommunicatorTest, SizesThatDisagreeAreNamed) {
  Group group = ThreadCommunicator::MakeGroup(2, absl::Seconds(60));
  std::vector<absl::Status> status(2);
  OnEachRank(2, [&](int rank) {
    std::vector<float> values(rank == 0 ? 10 : 11);
    status[static_cast<size_t>(rank)] = group[static_cast<size_t>(rank)]->AllReduceSum(values);
  });
  for (const absl::Status& failure : status) {
    EXPECT_THAT(failure, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("awaits 4")));
  }
}

TEST(GlooCommunicatorTest, RanksThatDoNotComeAreNamed) {
  MemoryRendezvous rendezvous;
  EXPECT_THAT(GlooCommunicator::Connect(
                  {.rank = 1, .size = 4, .connect_timeout = absl::Milliseconds(100)}, rendezvous),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("in time: 0, 2, 3")));
}

TEST(GlooCommunicatorTest, TwoProcessesCannotBeTheSameRank) {
  MemoryRendezvous rendezvous;
  const GlooCommunicator::Options options = {
      .rank = 1, .size = 2, .connect_timeout = absl::Milliseconds(100)};
  EXPECT_THAT(GlooCommunicator::Connect(options, rendezvous),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(GlooCommunicator::Connect(options, rendezvous),
              StatusIs(absl::StatusCode::kAlreadyExists));
}

TEST(GlooCommunicatorTest, AddressesOfOtherHostsAreRefused) {
  MemoryRendezvous rendezvous;
  for (const char* address : {"192.0.2.1", "no such host.", ""}) {
    EXPECT_THAT(GlooCommunicator::Connect({.rank = 0, .size = 1, .address = address}, rendezvous),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(address)))
        << address;
  }
  EXPECT_THAT(GlooCommunicator::Connect({.rank = 2, .size = 2}, rendezvous),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace lynx::collective::testing
