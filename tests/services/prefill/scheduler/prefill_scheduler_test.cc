#include "services/prefill/scheduler/prefill_scheduler.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_size.h"

namespace lynx::prefill {

bool operator==(const PrefillScheduler::Chunk& a, const PrefillScheduler::Chunk& b) {
  return a.id == b.id && a.start == b.start && a.rows == b.rows && a.last == b.last;
}
void PrintTo(const PrefillScheduler::Chunk& c, std::ostream* out) {
  *out << "{" << c.id << ", " << c.start << "+" << c.rows << (c.last ? ", last}" : "}");
}

namespace {

using ::lynx::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Chunk = PrefillScheduler::Chunk;
using Computed = std::optional<int32_t>;  // What `start` answers.
using StartFunction = std::function<Computed(SequenceId)>;

const StartFunction kAlways = [](SequenceId) { return Computed(0); };
const absl::Time kNow = absl::FromUnixSeconds(1000);
constexpr int32_t kRows = 16;  // Of a step, where it matters.

std::vector<Chunk> Next(PrefillScheduler& scheduler, const StartFunction& start = kAlways) {
  return scheduler.Next(kNow, {}, start);
}

TEST(PrefillSchedulerTest, CutsLongPromptsAndPacksShortOnes) {
  PrefillScheduler scheduler({.step_rows = 10});
  ASSERT_TRUE(scheduler.Add({1, 14}).ok());
  EXPECT_THAT(Next(scheduler), ElementsAre(Chunk{1, 0, 10, false}));
  ASSERT_TRUE(scheduler.Add({2, 3}).ok());
  ASSERT_TRUE(scheduler.Add({3, 9}).ok());
  EXPECT_EQ(scheduler.queued_tokens(), 16);
  // Two rows to the oldest; then the shortest, the next, as far as they go.
  EXPECT_THAT(Next(scheduler),
              ElementsAre(Chunk{1, 10, 4, true}, Chunk{2, 0, 3, true}, Chunk{3, 0, 3, false}));
  EXPECT_THAT(Next(scheduler), ElementsAre(Chunk{3, 3, 6, true}));
  EXPECT_THAT(Next(scheduler), IsEmpty());
  EXPECT_EQ(scheduler.queued_tokens(), 0);
}

TEST(PrefillSchedulerTest, EqualPromptsGoInOrderOfArrival) {
  PrefillScheduler scheduler({.step_rows = 8});
  for (SequenceId id : {1, 2, 3}) ASSERT_TRUE(scheduler.Add({id, 12}).ok());
  EXPECT_THAT(Next(scheduler), ElementsAre(Chunk{1, 0, 8, false}));
  EXPECT_THAT(Next(scheduler), ElementsAre(Chunk{1, 8, 4, true}, Chunk{2, 0, 4, false}));
  EXPECT_THAT(Next(scheduler), ElementsAre(Chunk{2, 4, 8, true}));
  EXPECT_THAT(Next(scheduler), ElementsAre(Chunk{3, 0, 8, false}));
}

TEST(PrefillSchedulerTest, AShortPromptOvertakesLongOnesWhichKeepTheirShare) {
  PrefillScheduler scheduler({.step_rows = 8});
  ASSERT_TRUE(scheduler.Add({1, 100}).ok());
  ASSERT_TRUE(scheduler.Add({2, 80}).ok());
  ASSERT_TRUE(scheduler.Add({3, 5}).ok());
  EXPECT_THAT(Next(scheduler),
              ElementsAre(Chunk{1, 0, 2, false}, Chunk{2, 0, 1, false}, Chunk{3, 0, 5, true}));
}

TEST(PrefillSchedulerTest, ADeadlineThatIsNearComesFirst) {
  PrefillScheduler scheduler({.step_rows = 8});
  const StepTime step_time = {.per_row = absl::Milliseconds(10), .max_rows = 8};
  ASSERT_TRUE(scheduler.Add({1, 100}).ok());
  ASSERT_TRUE(scheduler.Add({2, 60, kNow + absl::Seconds(1)}).ok());
  ASSERT_TRUE(scheduler.Add({3, 5}).ok());
  EXPECT_THAT(scheduler.Next(kNow, step_time, kAlways),
              ElementsAre(Chunk{1, 0, 2, false}, Chunk{2, 0, 6, false}));
}

TEST(PrefillSchedulerTest, ALowerPriorityTakesAllThatItCanUse) {
  PrefillScheduler scheduler({.step_rows = 8});
  ASSERT_TRUE(scheduler.Add({.id = 1, .tokens = 20, .priority = 5}).ok());
  ASSERT_TRUE(scheduler.Add({.id = 2, .tokens = 12}).ok());
  EXPECT_THAT(Next(scheduler), ElementsAre(Chunk{2, 0, 8, false}));
  EXPECT_THAT(Next(scheduler), ElementsAre(Chunk{1, 0, 4, false}, Chunk{2, 8, 4, true}));
}

TEST(PrefillSchedulerTest, WhoWaitsForRoomDoesNotHoldUpALowerPriority) {
  PrefillScheduler scheduler({.step_rows = 8});
  ASSERT_TRUE(scheduler.Add({.id = 1, .tokens = 4, .priority = 5}).ok());
  const StartFunction no_room_for_1 = [](SequenceId id) {
    return id == 1 ? std::nullopt : Computed(0);
  };
  EXPECT_THAT(Next(scheduler, no_room_for_1), IsEmpty());
  for (SequenceId id = 2; id < 6; ++id) {
    ASSERT_TRUE(scheduler.Add({.id = id, .tokens = 8}).ok());
    EXPECT_THAT(Next(scheduler, no_room_for_1), ElementsAre(Chunk{id, 0, 8, true}));
  }
}

TEST(PrefillSchedulerTest, WhatNobodyElseCouldUseIsNotHeldAgainstATenant) {
  PrefillScheduler scheduler({.step_rows = kRows});
  ASSERT_TRUE(scheduler.Add({.id = 1, .tokens = 1000, .priority = 5, .tenant = 1}).ok());
  ASSERT_TRUE(scheduler.Add({.id = 2, .tokens = 2000, .tenant = 2}).ok());
  for (int step = 0; step < 100; ++step) {  // Tenant 1 has to wait.
    ASSERT_THAT(Next(scheduler), ElementsAre(Chunk{2, step * kRows, kRows, false}));
  }
  ASSERT_TRUE(scheduler.Add({.id = 3, .tokens = 1000, .tenant = 3}).ok());
  std::map<SequenceId, int32_t> rows;
  for (int step = 0; step < 20; ++step) {
    for (const Chunk& chunk : Next(scheduler)) rows[chunk.id] += chunk.rows;
  }
  EXPECT_NEAR(rows[2], rows[3], 2 * kRows);
}

TEST(PrefillSchedulerTest, TenantsGetEqualRowsWhateverTheyAskFor) {
  PrefillScheduler scheduler({.step_rows = kRows});
  SequenceId next = 1;
  std::map<SequenceId, TenantId> tenants;
  const auto ask = [&](TenantId tenant, int32_t tokens) {
    tenants[next] = tenant;
    ASSERT_TRUE(scheduler.Add({.id = next++, .tokens = tokens, .tenant = tenant}).ok());
  };
  for (int i = 0; i < 400; ++i) ask(1, 10);  // Many short ones, all before.
  for (int i = 0; i < 20; ++i) ask(2, 100);
  std::map<TenantId, int32_t> rows;
  for (int step = 0; step < 200; ++step) {
    for (const Chunk& chunk : Next(scheduler)) rows[tenants.at(chunk.id)] += chunk.rows;
  }
  EXPECT_NEAR(rows[1], rows[2], 2 * kRows);
}

TEST(PrefillSchedulerTest, LogitsHaveABudgetOfTheirOwn) {
  PrefillScheduler scheduler({.step_rows = 12, .step_logits = 4});
  ASSERT_TRUE(scheduler.Add({.id = 1, .tokens = 6, .all_logits = true}).ok());
  ASSERT_TRUE(scheduler.Add({2, 30}).ok());
  EXPECT_THAT(Next(scheduler), ElementsAre(Chunk{1, 0, 4, false}));
  ASSERT_TRUE(scheduler.Add({3, 1}).ok());
  ASSERT_TRUE(scheduler.Add({4, 1}).ok());
  ASSERT_TRUE(scheduler.Add({5, 1}).ok());
  EXPECT_THAT(Next(scheduler),
              ElementsAre(Chunk{1, 4, 2, true}, Chunk{3, 0, 1, true}, Chunk{4, 0, 1, true}));
  EXPECT_THAT(Next(scheduler), ElementsAre(Chunk{2, 0, 11, false}, Chunk{5, 0, 1, true}));
}

TEST(PrefillSchedulerTest, APromptWithoutRoomIsOvertakenByNoMoreThanItsOwnLength) {
  PrefillScheduler scheduler({.step_rows = 8});
  ASSERT_TRUE(scheduler.Add({2, 6}).ok());
  for (SequenceId id : {3, 4, 5}) ASSERT_TRUE(scheduler.Add({id, 3}).ok());
  const StartFunction not_two = [](SequenceId id) { return id != 2 ? Computed(0) : std::nullopt; };
  EXPECT_THAT(Next(scheduler, not_two), ElementsAre(Chunk{3, 0, 3, true}, Chunk{4, 0, 3, true}));
  EXPECT_THAT(Next(scheduler, not_two), IsEmpty()) << "5 waits behind 2 now";
  EXPECT_EQ(scheduler.waiting(), 2);
  EXPECT_THAT(Next(scheduler), ElementsAre(Chunk{2, 0, 5, false}, Chunk{5, 0, 3, true}));
}

TEST(PrefillSchedulerTest, AFullPoolIsNotAskedByEverybodyInEveryStep) {
  PrefillScheduler scheduler({.step_rows = 8});
  for (SequenceId id = 1; id <= 100; ++id) ASSERT_TRUE(scheduler.Add({id, 4}).ok());
  int asked = 0;
  const StartFunction never = [&](SequenceId) {
    ++asked;
    return Computed();
  };
  EXPECT_THAT(Next(scheduler, never), IsEmpty());
  EXPECT_LE(asked, PrefillScheduler::kMostDenials);
}

TEST(PrefillSchedulerTest, RefusalsTellTheCallerWhatToDoNext) {
  PrefillScheduler scheduler({.step_rows = 4, .max_jobs = 2, .max_queued_tokens = 10});
  EXPECT_THAT(scheduler.Add({1, 0}), StatusIs(absl::StatusCode::kInvalidArgument));
  ASSERT_TRUE(scheduler.Add({1, 100}).ok()) << "an idle node takes a prompt of any length";
  EXPECT_THAT(scheduler.Add({1, 1}), StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_THAT(scheduler.Add({2, 1}), StatusIs(absl::StatusCode::kResourceExhausted));
  scheduler.Remove(1);
  ASSERT_TRUE(scheduler.Add({2, 1}).ok());
  ASSERT_TRUE(scheduler.Add({3, 1}).ok());
  EXPECT_THAT(scheduler.Add({4, 1}), StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(PrefillSchedulerTest, APromptBeginsBehindWhatIsComputedAlready) {
  PrefillScheduler scheduler({.step_rows = 8});
  ASSERT_TRUE(scheduler.Add({1, 40}).ok());
  const StartFunction held = [](SequenceId) { return Computed(32); };
  EXPECT_THAT(Next(scheduler, held), ElementsAre(Chunk{1, 32, 8, true}));
  EXPECT_EQ(scheduler.queued_tokens(), 0);
}

// Random prompts that come, leave and find room or not, with what must hold in every step.
class Traffic {
 public:
  explicit Traffic(uint64_t seed) : rng_(seed) {}

  void Arrive(int32_t most_tokens) {
    const auto tokens = static_cast<int32_t>(1 + rng_() % static_cast<uint64_t>(most_tokens));
    const absl::Time deadline =
        rng_() % 3 == 0 ? now_ + absl::Milliseconds(rng_() % 4000) : absl::InfiniteFuture();
    if (scheduler_.Add({.id = next_, .tokens = tokens, .deadline = deadline, .tenant = rng_() % 3})
            .ok())
      live_[next_] = {.tokens = tokens};
    ++next_;
  }
  void Leave() {
    if (live_.empty()) return;
    auto it = live_.begin();
    std::advance(it, static_cast<long>(rng_() % live_.size()));
    free_ += it->second.started ? it->second.tokens : 0;
    scheduler_.Remove(it->first);
    live_.erase(it);
  }
  void Step() {
    std::set<SequenceId> began;
    const StartFunction start = [&](SequenceId id) -> Computed {
      Job& job = live_.at(id);
      EXPECT_FALSE(job.started);
      if (job.tokens > free_) return std::nullopt;
      free_ -= job.tokens;
      job.started = true;
      began.insert(id);
      if (rng_() % 3 != 0) return 0;
      return job.computed = static_cast<int32_t>(rng_() % static_cast<uint64_t>(job.tokens));
    };
    const StepTime step_time = {.per_row = absl::Milliseconds(10), .max_rows = kRows};
    const std::vector<Chunk> chunks = scheduler_.Next(now_, step_time, start);
    now_ += absl::Milliseconds(160);
    int32_t rows = 0;
    std::map<SequenceId, int32_t> given;
    for (const Chunk& chunk : chunks) {
      Job& job = live_.at(chunk.id);
      ASSERT_TRUE(job.started);
      ASSERT_EQ(chunk.start, job.computed);
      ASSERT_GT(chunk.rows, 0);
      job.computed += chunk.rows;
      rows += chunk.rows;
      given[chunk.id] = chunk.rows;
      ASSERT_EQ(given.size(), static_cast<size_t>(&chunk - chunks.data()) + 1) << "one chunk each";
      ASSERT_EQ(chunk.last, job.computed == job.tokens);
    }
    ASSERT_LE(rows, kRows);
    bool idle = true;  // Nobody under way has rows left that were not given.
    for (const auto& [id, job] : live_) idle &= !job.started || job.computed == job.tokens;
    ASSERT_TRUE(rows == kRows || idle) << "rows were left unused";
    // The oldest has had its share, unless it came under way in this step, perhaps not the first.
    const auto oldest = std::find_if(live_.begin(), live_.end(),
                                     [](const auto& live) { return live.second.started; });
    if (oldest != live_.end() && !began.contains(oldest->first)) {
      const auto& [id, job] = *oldest;
      const int32_t had = job.computed - given[id];
      ASSERT_GE(given[id], std::min(job.tokens - had, kRows / PrefillScheduler::kShareOfOldest));
    }
    for (const Chunk& chunk : chunks) {
      if (!chunk.last) continue;
      free_ += live_.at(chunk.id).tokens;
      live_.erase(chunk.id);
    }
    int64_t queued = 0;
    for (const auto& [id, job] : live_) queued += job.tokens - job.computed;
    ASSERT_EQ(scheduler_.queued_tokens(), queued);
  }
  size_t live() const { return live_.size(); }
  uint64_t Random(uint64_t below) { return rng_() % below; }

 private:
  struct Job {
    int32_t tokens = 0;
    int32_t computed = 0;
    bool started = false;
  };
  std::mt19937_64 rng_;
  PrefillScheduler scheduler_{{.step_rows = kRows}};
  absl::Time now_ = kNow;
  int64_t free_ = 120;  // Tokens for which there is room.
  std::map<SequenceId, Job> live_;
  SequenceId next_ = 1;
};

TEST(PrefillSchedulerTest, KeepsItsPromisesUnderRandomTraffic) {
  const uint64_t seeds = testing::ForTestSize(3u, 40u, 1000u);
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Traffic traffic(seed);
    size_t most = 0;
    for (int round = 0; round < 1000; ++round) {
      const bool rush = round / 50 % 2 == 0;  // More than can be done, then less.
      if (rush || traffic.Random(4) == 0) traffic.Arrive(traffic.Random(8) == 0 ? 120 : 50);
      if (traffic.Random(30) == 0) traffic.Leave();
      traffic.Step();
      most = std::max(most, traffic.live());
      if (::testing::Test::HasFatalFailure()) return;
    }
    EXPECT_GT(most, 10u);
    // Everybody ends, within the steps that the oldest one's share takes.
    for (int step = 0; traffic.live() > 0; ++step) {
      ASSERT_LT(step, 5000);
      traffic.Step();
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

// Steps from arrival to the last chunk of a prompt, while others come without end.
int StepsUntilDone(int32_t tokens, const std::function<std::optional<int32_t>(int step)>& arrives) {
  PrefillScheduler scheduler({.step_rows = kRows, .max_jobs = 1 << 20});
  SequenceId next = 1000;
  const auto add = [&](int step) {
    const Computed tokens_of_other = arrives(step);
    if (!tokens_of_other.has_value()) return;
    EXPECT_TRUE(scheduler.Add({next++, *tokens_of_other}).ok());
  };
  for (int step = 0; step < 100; ++step) {  // Long before it, there were others.
    add(step);
    Next(scheduler);
  }
  EXPECT_TRUE(scheduler.Add({1, tokens}).ok());
  for (int step = 0; step < 100000; ++step) {
    for (const Chunk& chunk : Next(scheduler)) {
      if (chunk.id == 1 && chunk.last) return step + 1;
    }
    add(step);
  }
  return 1 << 30;
}

TEST(PrefillSchedulerTest, AShortPromptWaitsForAFewStepsHoweverManyLongOnesThereAre) {
  EXPECT_LE(
      StepsUntilDone(10, [](int step) { return step % 4 == 0 ? Computed(1000) : Computed(); }), 1);
}

TEST(PrefillSchedulerTest, ALongPromptEndsHoweverManyShortOnesCome) {
  // Short ones alone would fill every step.
  EXPECT_LE(StepsUntilDone(400, [](int) { return Computed(kRows - 4); }),
            400 / (kRows / PrefillScheduler::kShareOfOldest) + 2);
  EXPECT_LE(StepsUntilDone(400, [](int) { return Computed(kRows); }),
            400 / (kRows / PrefillScheduler::kShareOfOldest) + 2);
}

}  // namespace
}  // namespace lynx::prefill
