#include <algorithm>
#include <cstdlib>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fault_script.h"
#include "tests/support/fault_trial.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_size.h"

// Faults drawn at random: nodes die, freeze, are cut off and return, messages are lost, doubled and
// late, hand-offs go wrong in every way, and they meet. No answer is lost, none is wrong, nothing
// is kept. A failure prints its seed and the shortest script found that fails, too; LYNX_TEST_SEED
// repeats one seed.
namespace lynx {
namespace {

using ::lynx::testing::FaultEvent;
using ::lynx::testing::FaultResult;
using ::lynx::testing::FaultScript;
using ::lynx::testing::FaultTrial;
using ::lynx::testing::IsOk;
using ::lynx::testing::ParseFaultScript;
using ::lynx::testing::Print;
using ::lynx::testing::RandomFaults;
using ::lynx::testing::RunFaults;
using ::lynx::testing::Shrink;

FaultTrial TrialOf(uint64_t seed) {
  FaultTrial trial;
  trial.prefill = 1 + static_cast<int>(seed % 3);
  trial.decode = 1 + static_cast<int>(seed / 3 % 3);
  trial.prompt_rows = seed % 4 == 0 ? 24 : 0;
  trial.kv_blocks = seed % 5 == 0 ? 12 : 48;  // Twelve hold one long sequence: some are preempted.
  return trial;
}

void ExpectNothingLost(FaultTrial (*trial_of)(uint64_t seed), uint64_t seeds) {
  const char* one = std::getenv("LYNX_TEST_SEED");
  const uint64_t first = one != nullptr ? std::strtoull(one, nullptr, 10) : 1;
  if (one != nullptr) seeds = 1;
  const int events = testing::ForTestSize(60, 500, 10000);
  int finished = 0;
  int retried = 0;
  int resumed = 0;
  int moved = 0;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    const FaultTrial trial = trial_of(seed);
    const FaultScript script = RandomFaults(seed, events, trial.prefill, trial.decode);
    const FaultResult result = RunFaults(trial, script);
    if (result.broken.has_value()) {
      const FaultScript shortest = Shrink(
          script, [&](const FaultScript& s) { return RunFaults(trial, s).broken.has_value(); },
          2000);
      FAIL() << "LYNX_TEST_SEED=" << seed << " (" << trial.prefill << " prefill, " << trial.decode
             << " decode nodes): " << *result.broken << "\nof the shortest script: "
             << RunFaults(trial, shortest).broken.value_or("nothing") << "\n"
             << Print(shortest);
    }
    finished += result.finished;
    retried += result.retried;
    resumed += result.resumed;
    moved += result.moved;
  }
  ::testing::Test::RecordProperty("finished", finished);
  ::testing::Test::RecordProperty("retried", retried);
  ::testing::Test::RecordProperty("resumed", resumed);
  ::testing::Test::RecordProperty("moved", moved);
  if (one != nullptr) return;
  EXPECT_GT(finished, static_cast<int>(seeds) * events / 8) << "most of the requests";
  EXPECT_GT(resumed, static_cast<int>(seeds)) << "faults that meet no answer test little";
}

TEST(RandomFaultTest, NothingIsLostWhateverMeets) {
  ExpectNothingLost(TrialOf, testing::ForTestSize(20, 100, 1000));
}

// Where an answer is repeated to go on, and each token has the bits of who computed it.
TEST(RandomFaultTest, NothingIsLostBetweenUnlikeClasses) {
  const auto trial_of = [](uint64_t seed) {
    FaultTrial trial = TrialOf(seed);
    trial.unlike = true;
    trial.prompt_rows = 0;  // They would be a pair of equal classes where prefill is gone.
    return trial;
  };
  ExpectNothingLost(trial_of, testing::ForTestSize(10, 50, 500));
}

// The answers of a run, when they came, and what was done for them depend on the script alone.
TEST(RandomFaultTest, AScriptRunsAlikeEachTime) {
  const FaultScript script = RandomFaults(5, 80, 2, 2);
  const FaultResult once = RunFaults({}, script);
  const FaultResult again = RunFaults({}, script);
  EXPECT_EQ(once.broken, again.broken);
  EXPECT_EQ(once.retried, again.retried);
  EXPECT_EQ(once.resumed, again.resumed);
}

TEST(FaultScriptTest, IsReadAsItIsPrinted) {
  const FaultScript script = RandomFaults(1, 500, 2, 3);
  const auto parsed = ParseFaultScript(Print(script));
  ASSERT_THAT(parsed, IsOk());
  EXPECT_EQ(*parsed, script);
  for (const char* wrong : {"5 kill", "kill decode-0", "5 slay decode-0", "1 drop router",
                            "1 submit 3", "1 kill decode-0 7", "1 drop router x"}) {
    EXPECT_FALSE(ParseFaultScript(wrong).ok()) << wrong;
  }
}

TEST(FaultScriptTest, ShrinksToWhatIsNeeded) {
  const auto has = [](const FaultScript& script, FaultEvent::Op op) {
    return std::any_of(script.begin(), script.end(), [&](auto& e) { return e.op == op; });
  };
  int tries = 0;
  const FaultScript shortest = Shrink(
      RandomFaults(2, 400, 2, 2),
      [&](const FaultScript& script) {
        ++tries;
        return has(script, FaultEvent::kKill) && has(script, FaultEvent::kSubmit) &&
               has(script, FaultEvent::kThaw);
      },
      1000);
  EXPECT_EQ(shortest.size(), 3u) << Print(shortest);
  EXPECT_LT(tries, 300);
}

}  // namespace
}  // namespace lynx
