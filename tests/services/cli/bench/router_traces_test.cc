#include "services/cli/bench/router_traces.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace lynx::cli {
namespace {

using ::lynx::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Every logit says where it is from: digits step, layer, sequence, expert.
RouterTraces Labelled() {
  RouterTraces traces{.steps = 3, .layers = 2, .sequences = 2, .experts = 4};
  for (int step = 0; step < 3; ++step) {
    for (int layer = 0; layer < 2; ++layer) {
      for (int sequence = 0; sequence < 2; ++sequence) {
        for (int expert = 0; expert < 4; ++expert) {
          traces.logits.push_back(
              static_cast<float>(1000 * step + 100 * layer + 10 * sequence + expert));
        }
      }
    }
  }
  return traces;
}

std::vector<float> Composed(int64_t experts, int64_t rows, int64_t index) {
  std::vector<float> logits(static_cast<size_t>(experts * rows));
  ComposeRouterLogits(Labelled(), experts, rows, index, logits);
  return logits;
}

TEST(RouterTracesTest, TracedSizesReplayAsTheyWere) {
  EXPECT_THAT(Composed(4, 2, 0), ElementsAre(0, 1, 2, 3, 10, 11, 12, 13));
  EXPECT_THAT(Composed(4, 1, 1), ElementsAre(100, 101, 102, 103)) << "the second layer";
}

TEST(RouterTracesTest, DeeperLayersAreTheTracedOnesAtLaterSteps) {
  EXPECT_THAT(Composed(4, 1, 2), ElementsAre(1000, 1001, 1002, 1003));
  EXPECT_THAT(Composed(4, 1, 5), ElementsAre(2100, 2101, 2102, 2103));
  EXPECT_THAT(Composed(4, 1, 6), ElementsAre(0, 1, 2, 3)) << "and then from the start";
}

TEST(RouterTracesTest, FewerExpertsAreTheFirst) {
  EXPECT_THAT(Composed(2, 2, 0), ElementsAre(0, 1, 10, 11));
}

TEST(RouterTracesTest, MoreExpertsComeFromTheTokensFurtherLayers) {
  EXPECT_THAT(Composed(6, 1, 0), ElementsAre(0, 1, 2, 3, 100, 101));
  EXPECT_THAT(Composed(6, 1, 1), ElementsAre(100, 101, 102, 103, 0, 1));
}

TEST(RouterTracesTest, RowsBeyondTheSequencesAreOfLaterSteps) {
  EXPECT_THAT(Composed(1, 5, 0), ElementsAre(0, 10, 1000, 1010, 2000));
}

TEST(RouterTracesTest, TheTracesInTheTreeAreRead) {
  const auto traces = ReadRouterTraces("models/router-traces/mixed.bin");
  ASSERT_THAT(traces, IsOk());
  EXPECT_EQ(traces->experts, 64);
  EXPECT_EQ(traces->Row(0, 0, 0).size(), 64u);
}

TEST(RouterTracesTest, BrokenFilesAreNamed) {
  testing::TempDir dir;
  std::vector<float> logits(2 * 2 * 3 * 4, 1.0f);
  const auto write = [&] {
    dir.Write("t.bin",
              {reinterpret_cast<const char*>(logits.data()), logits.size() * sizeof(float)});
  };
  const auto error = [&] {
    return std::string(ReadRouterTraces(dir.path() / "t.bin").status().message());
  };
  write();
  EXPECT_THAT(error(), HasSubstr("t.json"));
  dir.Write("t.json", R"({"shape":[2,2,3,4])");
  EXPECT_THAT(error(), HasSubstr("t.json: is not valid JSON"));
  dir.Write("t.json", R"({"shape":[2,2,3]})");
  EXPECT_THAT(error(), HasSubstr("four sizes"));
  dir.Write("t.json", R"({"shape":[2,2,3,5]})");
  EXPECT_THAT(error(), HasSubstr("has 192 bytes"));
  dir.Write("t.json", R"({"shape":[2,2,3,4]})");
  EXPECT_EQ(error(), "");
  logits[((1 * 2 + 0) * 3 + 2) * 4 + 1] = std::numeric_limits<float>::quiet_NaN();
  write();
  EXPECT_THAT(error(), HasSubstr("step 1, layer 0, sequence 2"));
}

}  // namespace
}  // namespace lynx::cli
