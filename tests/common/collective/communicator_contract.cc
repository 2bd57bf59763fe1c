#include "tests/common/collective/communicator_contract.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/support/status_matchers.h"

namespace lynx::collective::testing {

void OnEachRank(int size, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

std::string CaseName(const ::testing::TestParamInfo<Case>& info) {
  return absl::StrCat(info.param.name, info.param.size);
}

namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::Each;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

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

TEST_P(CommunicatorTest, SumsOfDoublesHaveTheSameOrder) {
  Make();
  for (const size_t count : {0u, 1u, 7u, 4096u, 4097u, 50'001u}) {
    std::vector<double> expected(count);
    for (int rank = 0; rank < size(); ++rank) {
      const std::vector<float> values = Values(rank, count);
      for (size_t i = 0; i < count; ++i) {
        expected[i] = rank == 0 ? values[i] / 3.0 : expected[i] + values[i] / 3.0;
      }
    }
    OnEach([&](Communicator& ranks) {
      std::vector<double> values;
      for (const float value : Values(ranks.rank(), count)) values.push_back(value / 3.0);
      ASSERT_THAT(ranks.AllReduceSum(values), IsOk());
      EXPECT_TRUE(count == 0 || std::memcmp(values.data(), expected.data(), count * 8) == 0)
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

// Ranks that are even, and those that are odd.
std::vector<int> LikeMe(const Communicator& ranks) {
  std::vector<int> members;
  for (int rank = ranks.rank() % 2; rank < ranks.size(); rank += 2) members.push_back(rank);
  return members;
}

TEST_P(CommunicatorTest, SubgroupsExchangeAmongThemselvesBetweenCallsOfAll) {
  Make();
  OnEach([&](Communicator& ranks) {
    const std::vector<int> members = LikeMe(ranks);
    const std::unique_ptr<Communicator> few = ranks.Subgroup(members);
    EXPECT_EQ(few->rank(), ranks.rank() / 2);
    EXPECT_EQ(few->size(), static_cast<int>(members.size()));
    for (int round = 0; round < 3; ++round) {
      // The two subgroups make unlike numbers of calls, of unlike sizes.
      for (int call = 0; call <= 2 * (ranks.rank() % 2); ++call) {
        const auto count = static_cast<size_t>(ranks.rank() % 2 == 0 ? 20'000 : 3 + call);
        std::vector<float> values = Values(ranks.rank(), count);
        std::vector<float> expected = Values(members[0], count);
        for (size_t m = 1; m < members.size(); ++m) {
          const std::vector<float> more = Values(members[m], count);
          for (size_t i = 0; i < count; ++i) expected[i] += more[i];
        }
        ASSERT_THAT(few->AllReduceSum(values), IsOk());
        EXPECT_EQ(values, expected) << "rank " << ranks.rank() << " round " << round;
      }
      std::vector<int> all(static_cast<size_t>(size()));
      ASSERT_THAT(ranks.AllGather(std::as_bytes(std::span(&members[0], 1)),
                                  std::as_writable_bytes(std::span(all))),
                  IsOk());
      for (int r = 0; r < size(); ++r) EXPECT_EQ(all[static_cast<size_t>(r)], r % 2);
    }
  });
}

TEST_P(CommunicatorTest, ASubgroupAndItsGroupFailTogether) {
  for (const bool of_all : {false, true}) {
    Make();
    const std::unique_ptr<Communicator> few = At(0).Subgroup(LikeMe(At(0)));
    (of_all ? At(0) : *few).Abort(absl::CancelledError("enough"));
    std::vector<float> values(3);
    EXPECT_THAT(At(0).AllReduceSum(values),
                StatusIs(absl::StatusCode::kCancelled, HasSubstr("enough")));
    if (few->size() == 1) continue;  // Has nothing to do with anybody.
    EXPECT_THAT(few->AllReduceSum(values),
                StatusIs(absl::StatusCode::kCancelled, HasSubstr("enough")));
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

}  // namespace
}  // namespace lynx::collective::testing
