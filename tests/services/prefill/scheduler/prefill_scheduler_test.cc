#include "services/prefill/scheduler/prefill_scheduler.h"

#include <map>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

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
const auto kAlways = [](SequenceId) { return Computed(0); };

TEST(PrefillSchedulerTest, CutsLongPromptsAndPacksShortOnesInOrderOfArrival) {
  PrefillScheduler scheduler({.step_rows = 10});
  ASSERT_TRUE(scheduler.Add(1, 14).ok());
  ASSERT_TRUE(scheduler.Add(2, 3).ok());
  ASSERT_TRUE(scheduler.Add(3, 9).ok());
  EXPECT_EQ(scheduler.queued_tokens(), 26);
  EXPECT_THAT(scheduler.Next(kAlways), ElementsAre(Chunk{1, 0, 10, false}));
  EXPECT_THAT(scheduler.Next(kAlways),
              ElementsAre(Chunk{1, 10, 4, true}, Chunk{2, 0, 3, true}, Chunk{3, 0, 3, false}));
  EXPECT_THAT(scheduler.Next(kAlways), ElementsAre(Chunk{3, 3, 6, true}));
  EXPECT_THAT(scheduler.Next(kAlways), IsEmpty());
  EXPECT_EQ(scheduler.queued_tokens(), 0);
}

TEST(PrefillSchedulerTest, LogitsHaveABudgetOfTheirOwn) {
  PrefillScheduler scheduler({.step_rows = 10, .step_logits = 4});
  ASSERT_TRUE(scheduler.Add(1, 6, /*all_logits=*/true).ok());
  ASSERT_TRUE(scheduler.Add(2, 3).ok());
  ASSERT_TRUE(scheduler.Add(3, 9).ok());
  EXPECT_THAT(scheduler.Next(kAlways), ElementsAre(Chunk{1, 0, 4, false}));
  EXPECT_THAT(scheduler.Next(kAlways),
              ElementsAre(Chunk{1, 4, 2, true}, Chunk{2, 0, 3, true}, Chunk{3, 0, 5, false}));
}

TEST(PrefillSchedulerTest, APromptWithoutRoomHoldsUpThoseBehindItButNotThoseRunning) {
  PrefillScheduler scheduler({.step_rows = 4});
  ASSERT_TRUE(scheduler.Add(1, 6).ok());
  ASSERT_TRUE(scheduler.Add(2, 1).ok());
  ASSERT_TRUE(scheduler.Add(3, 1).ok());
  EXPECT_THAT(scheduler.Next(kAlways), ElementsAre(Chunk{1, 0, 4, false}));
  const auto not_two = [](SequenceId id) { return id != 2 ? Computed(0) : std::nullopt; };
  EXPECT_THAT(scheduler.Next(not_two), ElementsAre(Chunk{1, 4, 2, true}));
  EXPECT_THAT(scheduler.Next(not_two), IsEmpty());
  EXPECT_EQ(scheduler.waiting(), 2);
  EXPECT_THAT(scheduler.Next(kAlways), ElementsAre(Chunk{2, 0, 1, true}, Chunk{3, 0, 1, true}));
}

TEST(PrefillSchedulerTest, RefusalsTellTheCallerWhatToDoNext) {
  PrefillScheduler scheduler({.step_rows = 4, .max_jobs = 2, .max_queued_tokens = 10});
  EXPECT_THAT(scheduler.Add(1, 0), StatusIs(absl::StatusCode::kInvalidArgument));
  ASSERT_TRUE(scheduler.Add(1, 100).ok()) << "an idle node takes a prompt of any length";
  EXPECT_THAT(scheduler.Add(1, 1), StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_THAT(scheduler.Add(2, 1), StatusIs(absl::StatusCode::kResourceExhausted));
  scheduler.Remove(1);
  ASSERT_TRUE(scheduler.Add(2, 1).ok());
  ASSERT_TRUE(scheduler.Add(3, 1).ok());
  EXPECT_THAT(scheduler.Add(4, 1), StatusIs(absl::StatusCode::kResourceExhausted));
}

// Whatever arrives and leaves, each prompt's chunks are contiguous, complete, within the budget.
TEST(PrefillSchedulerTest, ChunksCoverEachPromptExactlyOnceUnderRandomTraffic) {
  for (uint32_t seed : {1u, 2u, 3u, 4u}) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937 rng(seed);
    PrefillScheduler scheduler({.step_rows = 16});
    std::map<SequenceId, std::pair<int32_t, int32_t>> live;  // Prompt, computed.
    SequenceId next = 1;
    for (int round = 0; round < 2000; ++round) {
      switch (rng() % 4) {
        case 0: {
          const auto tokens = static_cast<int32_t>(1 + rng() % 40);
          if (scheduler.Add(next, tokens).ok()) live[next] = {tokens, 0};
          ++next;
          break;
        }
        case 1:
          if (!live.empty() && rng() % 4 == 0) {
            scheduler.Remove(live.begin()->first);
            live.erase(live.begin());
          }
          break;
        default: {
          int32_t rows = 0;
          const auto start = [&](SequenceId id) -> Computed {
            if (rng() % 3 == 0) return std::nullopt;
            auto& [prompt, computed] = live.at(id);
            return computed = static_cast<int32_t>(rng() % static_cast<uint64_t>(prompt));
          };
          for (const Chunk& chunk : scheduler.Next(start)) {
            auto& [prompt, computed] = live.at(chunk.id);
            ASSERT_EQ(chunk.start, computed);
            ASSERT_GT(chunk.rows, 0);
            computed += chunk.rows;
            rows += chunk.rows;
            ASSERT_EQ(chunk.last, computed == prompt);
            if (chunk.last) live.erase(chunk.id);
          }
          ASSERT_LE(rows, 16);
        }
      }
      int64_t queued = 0;
      for (const auto& [id, job] : live) queued += job.first - job.second;
      ASSERT_EQ(scheduler.queued_tokens(), queued);
    }
  }
}

TEST(PrefillSchedulerTest, APromptBeginsBehindWhatIsComputedAlready) {
  PrefillScheduler scheduler({.step_rows = 8});
  ASSERT_TRUE(scheduler.Add(1, 40).ok());
  const auto held = [](SequenceId) { return Computed(32); };
  EXPECT_THAT(scheduler.Next(held), ElementsAre(Chunk{1, 32, 8, true}));
  EXPECT_EQ(scheduler.queued_tokens(), 0);
}

}  // namespace
}  // namespace lynx::prefill
