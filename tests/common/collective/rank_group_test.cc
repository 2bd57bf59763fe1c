#include "common/collective/rank_group.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/collective/frame_socket.h"
#include "common/collective/gloo_communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/told_status.h"

namespace lynx::collective {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(60);

// What a rank is told beside messages, from any thread.
class Told {
 public:
  void Add(int rank, std::string message) {
    MutexLock lock(mu_);
    all_.emplace_back(rank, std::move(message));
    changed_.NotifyAll();
  }
  std::vector<std::pair<int, std::string>> Wait(size_t count) {
    const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoSeconds(kLong);
    MutexLock lock(mu_);
    while (all_.size() < count && changed_.WaitUntil(mu_, deadline)) {
    }
    return all_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::vector<std::pair<int, std::string>> all_ LYNX_GUARDED_BY(mu_);
};

struct Rank {
  Told told;
  testing::ToldStatus lost;
  testing::ToldStatus refused;
  std::unique_ptr<RankGroup> group;
  absl::Status joined;

  RankGroup::Options Options(int rank, int world, const std::string& address) {
    return {.rank = rank,
            .world = world,
            .address = address,
            .start_timeout = kLong,
            .silence = kLong,
            .on_lost = [this](const absl::Status& status) { lost.Set(status); },
            .on_told = [this](int from, std::string text) { told.Add(from, std::move(text)); },
            .on_refused = [this](const absl::Status& status) { refused.Set(status); }};
  }
  void Create(const RankGroup::Options& options) {
    auto created = RankGroup::Create(options);
    ASSERT_THAT(created, IsOk());
    group = *std::move(created);
  }
};

class RankGroupTest : public ::testing::Test {
 protected:
  void StartLeader(int world, absl::Duration start_timeout = kLong,
                   absl::Duration silence = kLong) {
    world_ = world;
    RankGroup::Options options = leader_.Options(0, world, "127.0.0.1:0");
    options.start_timeout = start_timeout;
    options.silence = silence;
    leader_.Create(options);
  }
  std::unique_ptr<Rank> Other(int rank) {
    auto other = std::make_unique<Rank>();
    other->Create(other->Options(rank, world_, leader_.group->endpoint()));
    return other;
  }
  // A leader and all others, joined.
  void Form(int world, absl::Duration silence = kLong) {
    StartLeader(world, kLong, silence);
    for (int rank = 1; rank < world; ++rank) others_.push_back(Other(rank));
    JoinAll();
    EXPECT_THAT(leader_.joined, IsOk());
    for (const auto& other : others_) EXPECT_THAT(other->joined, IsOk());
  }
  void JoinAll() {
    std::vector<std::thread> threads;
    threads.emplace_back([this] { leader_.joined = leader_.group->Join("tp 2", nullptr); });
    for (const auto& other : others_) {
      threads.emplace_back(
          [rank = other.get()] { rank->joined = rank->group->Join("tp 2", nullptr); });
    }
    for (std::thread& thread : threads) thread.join();
  }

  int world_ = 0;
  Rank leader_;
  std::vector<std::unique_ptr<Rank>> others_;
};

TEST_F(RankGroupTest, TheLeaderTellsAllAndHearsOfEach) {
  Form(3);
  EXPECT_THAT(leader_.group->Send("first"), IsOk());
  EXPECT_THAT(leader_.group->Send(std::string(3 << 20, 'x')), IsOk());
  for (const auto& other : others_) {
    EXPECT_EQ(other->group->Receive().value(), "first");
    EXPECT_EQ(other->group->Receive().value(), std::string(3 << 20, 'x'));
    EXPECT_THAT(other->group->Report(absl::StrCat("loaded ", other->group->rank())), IsOk());
  }
  EXPECT_THAT(leader_.group->Reports().value(), ElementsAre("", "loaded 1", "loaded 2"));
}

TEST_F(RankGroupTest, WhatIsToldIsHeardAtOnceWhileNobodyReceives) {
  Form(3);
  for (int i = 0; i < 5000; ++i) {  // More than messages may wait.
    EXPECT_THAT(leader_.group->Tell(absl::StrCat(i)), IsOk());
  }
  for (const auto& other : others_) {
    const auto told = other->told.Wait(5000);
    ASSERT_EQ(told.size(), 5000u);
    for (size_t i = 0; i < told.size(); ++i) {
      EXPECT_EQ(told[i], std::pair(0, absl::StrCat(i)));
    }
  }
  EXPECT_THAT(others_[1]->group->Tell("from 2"), IsOk());
  EXPECT_THAT(leader_.told.Wait(1), ElementsAre(std::pair<int, std::string>(2, "from 2")));
  EXPECT_THAT(others_[0]->group->Tell("from 1"), IsOk());
  EXPECT_EQ(leader_.told.Wait(2).back(), (std::pair<int, std::string>(1, "from 1")));
}

TEST_F(RankGroupTest, WhatOneRankPutsAllGet) {
  Form(3);
  EXPECT_THAT(others_[0]->group->rendezvous().Put("address", "here"), IsOk());
  for (RankGroup* group : {leader_.group.get(), others_[0]->group.get(), others_[1]->group.get()}) {
    EXPECT_EQ(group->rendezvous().Get("address", kLong).value(), "here");
  }
  EXPECT_THAT(others_[0]->group->rendezvous().Put("address", "there"),
              StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_THAT(leader_.group->rendezvous().Get("nothing", absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_F(RankGroupTest, CommunicatorsMeetInIt) {
  Form(3);
  std::vector<float> sums(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      RankGroup& group =
          rank == 0 ? *leader_.group : *others_[static_cast<size_t>(rank) - 1]->group;
      auto ranks = GlooCommunicator::Connect(
          {.rank = rank, .size = 3, .address = group.host(), .timeout = kLong}, group.rendezvous());
      ASSERT_THAT(ranks, IsOk());
      float value = static_cast<float>(rank + 1);
      EXPECT_THAT((*ranks)->AllReduceSum(std::span(&value, 1)), IsOk());
      EXPECT_THAT((*ranks)->Barrier(), IsOk());
      sums[static_cast<size_t>(rank)] = value;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(sums, ElementsAre(6, 6, 6));
}

TEST_F(RankGroupTest, AllHearWhichRanksDidNotCome) {
  StartLeader(4, absl::Milliseconds(300));
  others_.push_back(Other(2));
  JoinAll();
  const auto names_missing =
      StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("did not come within 300ms: 1, 3"));
  EXPECT_THAT(leader_.joined, names_missing);
  EXPECT_THAT(others_[0]->joined, names_missing);
}

TEST_F(RankGroupTest, ACheckEndsTheWait) {
  StartLeader(2);
  EXPECT_THAT(leader_.group->Join("tp 2", [] { return absl::NotFoundError("no program"); }),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no program")));
}

TEST_F(RankGroupTest, AMissingLeaderIsNamed) {
  Rank other;
  RankGroup::Options options = other.Options(1, 2, "127.0.0.1:1");
  options.start_timeout = absl::Milliseconds(200);
  other.Create(options);
  EXPECT_THAT(other.group->Join("tp 2", nullptr),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("rank 0 was not reached within 200ms")));
}

TEST_F(RankGroupTest, WhoDoesNotFitIsToldAndTheOthersGoOn) {
  StartLeader(2);
  std::thread waiting([&] { leader_.joined = leader_.group->Join("tp 2", nullptr); });
  const auto refusal = [&](int rank, int world, const std::string& identity) {
    Rank stranger;
    stranger.Create(stranger.Options(rank, world, leader_.group->endpoint()));
    const absl::Status status = stranger.group->Join(identity, nullptr);
    EXPECT_EQ(leader_.refused.Wait().message(), status.message());
    return status;
  };
  EXPECT_THAT(refusal(1, 4, "tp 2"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("rank 1 is of a group of 4, rank 0 of one of 2")));
  EXPECT_THAT(refusal(1, 2, "tp 2 f32"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("it has tp 2 f32"), HasSubstr("rank 0 has tp 2"))));
  const auto right = Other(1);
  EXPECT_THAT(right->group->Join("tp 2", nullptr), IsOk());
  waiting.join();
  EXPECT_THAT(leader_.joined, IsOk());
}

TEST_F(RankGroupTest, ARefusalHasWhatIsNotAlike) {
  StartLeader(2);
  std::thread waiting([&] {
    leader_.joined = leader_.group->Join("lynx 1\ntp 2\ncompute bf16\nsilent for 1s", nullptr);
  });
  const auto other = Other(1);
  EXPECT_THAT(other->group->Join("lynx 1\ntp 2\ncompute f32\nsilent for 3s", nullptr),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "rank 1 is not as rank 0: it has compute f32, silent for 3s, rank 0 has "
                       "compute bf16, silent for 1s"));
  leader_.group->Leave(absl::OkStatus());
  waiting.join();
}

TEST_F(RankGroupTest, ASecondProcessOfOneRankIsRefused) {
  StartLeader(3);
  std::thread waiting([&] { leader_.joined = leader_.group->Join("tp 2", nullptr); });
  others_.push_back(Other(1));
  others_.push_back(Other(1));
  std::thread first([&] { others_[0]->joined = others_[0]->group->Join("tp 2", nullptr); });
  std::thread second([&] { others_[1]->joined = others_[1]->group->Join("tp 2", nullptr); });
  EXPECT_THAT(leader_.refused.Wait(),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("another process is rank 1")));
  const auto last = Other(2);
  std::thread third([&] { last->joined = last->group->Join("tp 2", nullptr); });
  for (std::thread* thread : {&waiting, &first, &second, &third}) thread->join();
  EXPECT_THAT(leader_.joined, IsOk());
  EXPECT_NE(others_[0]->joined.ok(), others_[1]->joined.ok());
}

TEST_F(RankGroupTest, ImpossibleRanksAndAddressesAreRefusedAtOnce) {
  Rank rank;
  EXPECT_THAT(RankGroup::Create(rank.Options(2, 2, "127.0.0.1:0")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 2 of a group of 2")));
  EXPECT_THAT(RankGroup::Create(rank.Options(0, 2, "nowhere")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'nowhere'")));
  rank.Create(rank.Options(1, 2, "127.0.0.1:99999"));
  EXPECT_THAT(rank.group->Join("tp 2", nullptr), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(RankGroupTest, GarbageDoesNotKeepTheRanksFromMeeting) {
  StartLeader(2);
  std::vector<std::unique_ptr<FrameSocket>> strangers;
  for (const std::string& body : {std::string("GET / HTTP/1.1"), std::string(3, '\0')}) {
    auto stranger = FrameSocket::Connect(leader_.group->endpoint(), kLong, kLong);
    ASSERT_THAT(stranger, IsOk());
    for (uint8_t kind = 0; kind < 12; ++kind) (*stranger)->Send(kind, body).IgnoreError();
    strangers.push_back(*std::move(stranger));
  }
  others_.push_back(Other(1));
  JoinAll();
  EXPECT_THAT(leader_.joined, IsOk());
  EXPECT_THAT(others_[0]->joined, IsOk());
}

TEST_F(RankGroupTest, AllFailWithTheReasonOfTheRankThatEnds) {
  Form(3);
  others_[1]->group->Leave(absl::ResourceExhaustedError("no memory"));
  const auto reason =
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("rank 2 has ended: no memory"));
  EXPECT_THAT(leader_.lost.Wait(), reason);
  EXPECT_THAT(others_[0]->lost.Wait(), reason);
  EXPECT_THAT(others_[0]->group->Receive(), reason);
  EXPECT_THAT(leader_.group->Send("more"), reason);
  EXPECT_THAT(leader_.group->Reports(), reason);
  EXPECT_FALSE(others_[1]->lost.told());
}

TEST_F(RankGroupTest, WhoFailsTheGroupIsToldAsTheOthersAre) {
  Form(2);
  others_[0]->group->Fail(absl::InternalError("a kernel failed"));
  EXPECT_THAT(others_[0]->lost.Wait(), StatusIs(absl::StatusCode::kInternal));
  EXPECT_THAT(leader_.lost.Wait(), StatusIs(absl::StatusCode::kInternal,
                                            HasSubstr("rank 1 has ended: a kernel failed")));
}

TEST_F(RankGroupTest, TheOthersEndWithTheirLeaderInGoodOrder) {
  Form(3);
  EXPECT_THAT(leader_.group->Send("last"), IsOk());
  leader_.group = nullptr;
  for (const auto& other : others_) {
    EXPECT_EQ(other->group->Receive().value(), "last");
    EXPECT_THAT(other->group->Receive(), StatusIs(absl::StatusCode::kCancelled));
    EXPECT_FALSE(other->lost.told());
  }
}

// Comes as a rank, and says nothing more.
std::unique_ptr<FrameSocket> Silent(const std::string& address, uint32_t rank, uint32_t world,
                                    uint32_t magic = 0x314b4e52) {
  auto socket = FrameSocket::Connect(address, kLong, kLong);
  EXPECT_THAT(socket, IsOk());
  std::string hello;
  for (const uint32_t value : {magic, rank, world}) {
    hello.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  EXPECT_THAT((*socket)->Send(1, hello + "tp 2"), IsOk());
  return *std::move(socket);
}

TEST_F(RankGroupTest, ARankThatFallsSilentIsLostForAll) {
  StartLeader(3, kLong, absl::Seconds(1));
  // Keeps silent once the group has formed; until then it would only be asked to come again.
  const auto silent = Silent(leader_.group->endpoint(), 2, 3);
  others_.push_back(Other(1));
  JoinAll();
  EXPECT_THAT(leader_.joined, IsOk());
  const auto reason = StatusIs(absl::StatusCode::kUnavailable,
                               HasSubstr("rank 2 is lost: nothing was heard of it for 1s"));
  EXPECT_THAT(leader_.lost.Wait(), reason);
  EXPECT_THAT(others_[0]->lost.Wait(), reason);
}

TEST_F(RankGroupTest, ARankWhoseConnectionClosesIsLostForAll) {
  StartLeader(3);
  auto dying = Silent(leader_.group->endpoint(), 2, 3);
  others_.push_back(Other(1));
  JoinAll();
  EXPECT_THAT(leader_.joined, IsOk());
  dying = nullptr;
  const auto reason = StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 2 is lost"));
  EXPECT_THAT(leader_.lost.Wait(), reason);
  EXPECT_THAT(others_[0]->lost.Wait(), reason);
}

// The frames that come until there is one, or the connection ends.
std::vector<FrameSocket::Frame> Next(FrameSocket& socket, absl::Status& status) {
  std::vector<FrameSocket::Frame> frames;
  const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoSeconds(kLong);
  while (frames.empty() && status.ok() && std::chrono::steady_clock::now() < deadline) {
    status = socket.Read(4096, frames);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return frames;
}

TEST_F(RankGroupTest, AllOfALargeGroupMayComeAtOnce) {
  StartLeader(200);
  std::vector<std::unique_ptr<FrameSocket>> ranks;
  for (uint32_t rank = 1; rank < 200; ++rank) {
    ranks.push_back(Silent(leader_.group->endpoint(), rank, 200));
  }
  EXPECT_THAT(leader_.group->Join("tp 2", nullptr), IsOk());
  EXPECT_FALSE(leader_.refused.told());
}

TEST_F(RankGroupTest, ConnectionsThatSayNothingKeepNoRankOut) {
  StartLeader(2);
  std::vector<std::unique_ptr<FrameSocket>> strangers;
  for (int i = 0; i < 64; ++i) {
    strangers.push_back(FrameSocket::Connect(leader_.group->endpoint(), kLong, kLong).value());
  }
  others_.push_back(Other(1));
  JoinAll();
  EXPECT_THAT(leader_.joined, IsOk());
  EXPECT_THAT(others_[0]->joined, IsOk());
}

TEST_F(RankGroupTest, MoreConnectionsThatSayNothingAreClosedAndToldOf) {
  StartLeader(2);
  std::vector<std::unique_ptr<FrameSocket>> strangers;
  for (int i = 0; i < 67; ++i) {
    strangers.push_back(FrameSocket::Connect(leader_.group->endpoint(), kLong, kLong).value());
  }
  std::thread waiting([&] { leader_.joined = leader_.group->Join("tp 2", nullptr); });
  absl::Status closed;
  EXPECT_TRUE(Next(*strangers.back(), closed).empty());
  EXPECT_THAT(closed, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(leader_.refused.Wait(), StatusIs(absl::StatusCode::kResourceExhausted,
                                               HasSubstr("closed unread: 66 others")));
  leader_.group->Leave(absl::OkStatus());
  waiting.join();
}

TEST_F(RankGroupTest, ARankWhoseConnectionIsClosedUnreadAsksAgain) {
  auto listener = ListenSocket::Open("127.0.0.1:0");
  ASSERT_THAT(listener, IsOk());
  Rank other;
  other.Create(other.Options(1, 2, (*listener)->endpoint()));
  std::unique_ptr<FrameSocket> leader;
  std::thread accepting([&] {
    for (int times = 0; times < 3; ++times) {
      leader = nullptr;
      while (leader == nullptr) leader = (*listener)->Accept(kLong).value();
    }
    EXPECT_THAT(leader->Send(2, ""), IsOk());  // It may stay.
    EXPECT_THAT(leader->Send(4, ""), IsOk());  // All are there.
  });
  EXPECT_THAT(other.group->Join("tp 2", nullptr), IsOk());
  accepting.join();
}

TEST_F(RankGroupTest, ALeaderThatDoesNotAnswerIsWaitedForUntilTheDeadline) {
  auto listener = ListenSocket::Open("127.0.0.1:0");
  ASSERT_THAT(listener, IsOk());
  Rank other;
  RankGroup::Options options = other.Options(1, 2, (*listener)->endpoint());
  options.start_timeout = absl::Milliseconds(300);
  other.Create(options);
  const auto late = StatusIs(absl::StatusCode::kDeadlineExceeded,
                             HasSubstr("rank 0 was not reached within 300ms: it does not answer"));
  EXPECT_THAT(other.group->Join("tp 2", nullptr), late);
  EXPECT_THAT(other.group->Receive(), late);
}

TEST_F(RankGroupTest, ARankOfAnotherVersionIsToldSo) {
  StartLeader(2);
  std::thread waiting([&] { leader_.joined = leader_.group->Join("tp 2", nullptr); });
  const auto other = Silent(leader_.group->endpoint(), 1, 2, 0x314b4e53);
  absl::Status status;
  const auto frames = Next(*other, status);
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].kind, 3);  // Refused.
  EXPECT_THAT(frames[0].body, HasSubstr("another version of the ranks' protocol, 0x314b4e53"));
  EXPECT_THAT(leader_.refused.Wait(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0x314b4e53")));
  leader_.group->Leave(absl::OkStatus());
  waiting.join();
}

absl::Duration CpuTime() {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return absl::DurationFromTimespec(used);
}

// All file descriptors that this process may have.
class NoFreeDescriptors {
 public:
  NoFreeDescriptors() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit few = {.rlim_cur = 200, .rlim_max = before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &few);
    for (int fd = open("/dev/null", O_RDONLY); fd >= 0; fd = open("/dev/null", O_RDONLY)) {
      taken_.push_back(fd);
    }
  }
  ~NoFreeDescriptors() {
    for (const int fd : taken_) close(fd);
    setrlimit(RLIMIT_NOFILE, &before_);
  }

 private:
  rlimit before_{};
  std::vector<int> taken_;
};

TEST_F(RankGroupTest, WithoutFileDescriptorsTheLeaderSaysSoAndWaits) {
  StartLeader(2);
  const auto other = Silent(leader_.group->endpoint(), 1, 2);
  std::thread waiting;
  {
    const NoFreeDescriptors none;
    waiting = std::thread([&] { leader_.joined = leader_.group->Join("tp 2", nullptr); });
    EXPECT_THAT(leader_.refused.Wait(),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("Too many open files")));
    const absl::Duration begun = CpuTime();
    std::this_thread::sleep_for(std::chrono::seconds(1));
    EXPECT_LT(CpuTime() - begun, absl::Milliseconds(300));  // Does not try all the time.
  }
  waiting.join();
  EXPECT_THAT(leader_.joined, IsOk());
}

TEST_F(RankGroupTest, ALeaderThatFallsSilentIsLost) {
  auto listener = ListenSocket::Open("127.0.0.1:0");
  ASSERT_THAT(listener, IsOk());
  Rank other;
  RankGroup::Options options = other.Options(1, 2, (*listener)->endpoint());
  options.silence = absl::Milliseconds(200);
  other.Create(options);
  std::unique_ptr<FrameSocket> leader;
  std::thread accepting([&] {
    while (leader == nullptr) leader = (*listener)->Accept(kLong).value();
    EXPECT_THAT(leader->Send(4, ""), IsOk());  // All are there.
  });
  EXPECT_THAT(other.group->Join("tp 2", nullptr), IsOk());
  accepting.join();
  EXPECT_THAT(other.lost.Wait(), StatusIs(absl::StatusCode::kUnavailable,
                                          HasSubstr("rank 0 is lost: nothing was heard")));
  EXPECT_THAT(other.group->Receive(), StatusIs(absl::StatusCode::kUnavailable));
}

}  // namespace
}  // namespace lynx::collective
