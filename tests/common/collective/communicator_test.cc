// The contract of Communicator, for every implementation.
#include "common/collective/communicator.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/collective/gloo_communicator.h"
#include "common/collective/memory_rendezvous.h"
#include "common/collective/solo_communicator.h"
#include "common/collective/thread_communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace lynx::collective {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

using Group = std::vector<std::unique_ptr<Communicator>>;

// Calls `body` for each rank, on a thread of its own.
void OnEachRank(int size, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

struct Case {
  const char* name;
  int size;
  std::function<Group(int size, absl::Duration timeout)> make;
};

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

class CommunicatorTest : public ::testing::TestWithParam<Case> {
 protected:
  int size() const { return GetParam().size; }
  void Make(absl::Duration timeout = absl::Seconds(60)) {
    group_ = GetParam().make(size(), timeout);
    ASSERT_EQ(group_.size(), static_cast<size_t>(size()));
  }
  void OnEach(const std::function<void(Communicator&)>& body) {
    OnEachRank(size(), [&](int rank) { body(At(rank)); });
  }
  Communicator& At(int rank) { return *group_[static_cast<size_t>(rank)]; }

  Group group_;
};

// Numbers whose sums depend on the order of their summands.
std::vector<float> Values(int rank, size_t count) {
  std::mt19937 random(static_cast<uint32_t>(rank) + 17);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> values(count);
  for (float& value : values) value = std::ldexp(uniform(random), static_cast<int>(random() % 20));
  return values;
}

std::vector<float> SumInOrder(int ranks, size_t count) {
  std::vector<float> sum = Values(0, count);
  for (int r = 1; r < ranks; ++r) {
    const std::vector<float> more = Values(r, count);
    for (size_t i = 0; i < count; ++i) sum[i] += more[i];
  }
  return sum;
}

std::vector<std::byte> Bytes(size_t count, int value) {
  return std::vector<std::byte>(count, static_cast<std::byte>(value));
}

TEST_P(CommunicatorTest, KnowsWhoIsWho) {
  Make();
  for (int rank = 0; rank < size(); ++rank) {
    EXPECT_EQ(At(rank).rank(), rank);
    EXPECT_EQ(At(rank).size(), size());
  }
}

TEST_P(CommunicatorTest, SumsAreAddedInTheOrderOfRanksWhateverTheirNumber) {
  Make();
  for (const size_t count : {0u, 1u, 2u, 3u, 7u, 1000u, 8192u, 8193u, 100'003u}) {
    const std::vector<float> expected = SumInOrder(size(), count);
    OnEach([&](Communicator& ranks) {
      std::vector<float> values = Values(ranks.rank(), count);
      ASSERT_THAT(ranks.AllReduceSum(values), IsOk());
      // Bits, not numbers.
      EXPECT_TRUE(count == 0 || std::memcmp(values.data(), expected.data(), count * 4) == 0)
          << count << " values at rank " << ranks.rank();
    });
  }
}

TEST_P(CommunicatorTest, ScattersTheSameSums) {
  Make();
  for (const size_t part : {0u, 1u, 5u, 5000u}) {
    const size_t count = part * static_cast<size_t>(size());
    const std::vector<float> expected = SumInOrder(size(), count);
    OnEach([&](Communicator& ranks) {
      std::vector<float> mine(part);
      ASSERT_THAT(ranks.ReduceScatterSum(Values(ranks.rank(), count), mine), IsOk());
      const auto begin = expected.begin() + static_cast<ptrdiff_t>(part) * ranks.rank();
      EXPECT_TRUE(std::equal(mine.begin(), mine.end(), begin)) << part;
    });
  }
}

TEST_P(CommunicatorTest, GathersInTheOrderOfRanks) {
  Make();
  for (const size_t part : {0u, 1u, 3u, 70'000u}) {
    OnEach([&](Communicator& ranks) {
      std::vector<std::byte> all(part * static_cast<size_t>(size()));
      ASSERT_THAT(ranks.AllGather(Bytes(part, ranks.rank() + 1), all), IsOk());
      for (size_t i = 0; i < all.size(); ++i) {
        ASSERT_EQ(all[i], static_cast<std::byte>(i / part + 1)) << i;
      }
    });
  }
}

TEST_P(CommunicatorTest, EveryPartReachesItsRank) {
  Make();
  // Rank a sends rank b so many bytes, some of them none.
  const auto bytes = [](int a, int b) { return int64_t{(a * 7 + b * 13) % 5} * (a + b + 1) * 300; };
  for (int round = 0; round < 3; ++round) {
    OnEach([&](Communicator& ranks) {
      std::vector<int64_t> send_bytes;
      std::vector<int64_t> received_bytes;
      std::vector<std::byte> send;
      std::vector<std::byte> expected;
      for (int r = 0; r < size(); ++r) {
        send_bytes.push_back(bytes(ranks.rank(), r));
        received_bytes.push_back(bytes(r, ranks.rank()));
        send.insert(send.end(), static_cast<size_t>(send_bytes.back()),
                    static_cast<std::byte>(ranks.rank() * 16 + r));
        expected.insert(expected.end(), static_cast<size_t>(received_bytes.back()),
                        static_cast<std::byte>(r * 16 + ranks.rank()));
      }
      std::vector<std::byte> received(expected.size());
      ASSERT_THAT(ranks.AllToAll(send, send_bytes, received, received_bytes), IsOk());
      EXPECT_THAT(received, ElementsAreArray(expected));
    });
  }
}

TEST_P(CommunicatorTest, BroadcastsFromAnyRank) {
  Make();
  for (int root = 0; root < size(); ++root) {
    OnEach([&](Communicator& ranks) {
      std::vector<std::byte> data = Bytes(10'000, 100 + ranks.rank());
      ASSERT_THAT(ranks.Broadcast(data, root), IsOk());
      EXPECT_THAT(data, Each(static_cast<std::byte>(100 + root)));
      EXPECT_THAT(ranks.Broadcast({}, root), IsOk());
    });
  }
}

TEST_P(CommunicatorTest, NobodyPassesABarrierBeforeAllHaveCome) {
  Make();
  std::atomic<int> came = 0;
  OnEach([&](Communicator& ranks) {
    for (int round = 1; round <= 20; ++round) {
      ++came;
      ASSERT_THAT(ranks.Barrier(), IsOk());
      EXPECT_GE(came.load(), round * size());
    }
  });
}

TEST_P(CommunicatorTest, AnyOrderOfOperationsWorksManyTimes) {
  Make();
  OnEach([&](Communicator& ranks) {
    std::mt19937 random(5);  // The same choices at every rank.
    for (int i = 0; i < 60; ++i) {
      const size_t count = random() % 2000;
      switch (random() % 3) {
        case 0: {
          std::vector<float> ones(count, 1);
          ASSERT_THAT(ranks.AllReduceSum(ones), IsOk());
          EXPECT_THAT(ones, Each(static_cast<float>(size())));
          break;
        }
        case 1: {
          const int root = static_cast<int>(random()) & 0xff;
          std::vector<std::byte> data = Bytes(count, ranks.rank());
          ASSERT_THAT(ranks.Broadcast(data, root % size()), IsOk());
          EXPECT_THAT(data, Each(static_cast<std::byte>(root % size())));
          break;
        }
        default:
          ASSERT_THAT(ranks.Barrier(), IsOk());
      }
    }
  });
}

TEST_P(CommunicatorTest, RefusesSizesThatDoNotFit) {
  Make();
  Communicator& ranks = At(0);
  const auto parts = static_cast<size_t>(size());
  std::vector<float> mine(2);
  std::vector<std::byte> bytes(4);
  EXPECT_THAT(ranks.ReduceScatterSum(std::vector<float>(2 * parts + 1), mine),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(ranks.AllGather(bytes, bytes.size() == parts * 4 ? std::span<std::byte>() : bytes),
              StatusIs(absl::StatusCode::kInvalidArgument));
  for (const int root : {-1, size()}) {
    EXPECT_THAT(ranks.Broadcast(bytes, root), StatusIs(absl::StatusCode::kInvalidArgument));
  }
  std::vector<int64_t> fits(parts, 0);
  fits[0] = 4;
  std::vector<int64_t> short_one(parts, 0);
  std::vector<int64_t> negative(parts, 0);
  negative[0] = -4;
  for (const auto& wrong : {short_one, negative, std::vector<int64_t>(parts + 1, 0)}) {
    EXPECT_THAT(ranks.AllToAll(bytes, wrong, bytes, fits),
                StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(ranks.AllToAll(bytes, fits, bytes, wrong),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

TEST_P(CommunicatorTest, AfterAnAbortNothingWorks) {
  Make();
  At(0).Abort(absl::CancelledError("enough"));
  At(0).Abort(absl::InternalError("later"));
  std::vector<float> values(3);
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(At(0).AllReduceSum(values),
                StatusIs(absl::StatusCode::kCancelled, HasSubstr("enough")));
  }
  EXPECT_THAT(At(0).Barrier(), StatusIs(absl::StatusCode::kCancelled));
}

std::string CaseName(const ::testing::TestParamInfo<Case>& info) {
  return absl::StrCat(info.param.name, info.param.size);
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
}  // namespace lynx::collective
