#include "services/cli/bench.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"

namespace lynx::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Outcome {
  int status;
  std::string out;
  std::string err;
};

Outcome Bench(const std::vector<std::string>& arguments) {
  std::vector<const char*> argv = {"bench"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  std::ostringstream out;
  std::ostringstream err;
  const int status = RunBench(static_cast<int>(argv.size()), argv.data(), out, err);
  return {status, out.str(), err.str()};
}

std::vector<std::string> Small(const std::string& mode) {
  return {mode,          "--model=models/lynx-tiny-moe",
          "--batch=1,4", "--context=20",
          "--chunk=8",   "--steps=2",
          "--rounds=2",  "--threads=2",
          "--json",      "--read-buffer=8MiB"};
}

TEST(BenchTest, DecodeCountsTheBytesOfAStep) {
  const Outcome outcome = Bench(Small("decode"));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  ASSERT_EQ(json["rows"].size(), 2u);
  const auto& one = json["rows"][0];
  const auto& four = json["rows"][1];
  EXPECT_EQ(one["batch"], 1);
  EXPECT_EQ(one["active_experts"], 8) << "top-8 of one row";
  EXPECT_GT(four["active_experts"], 8) << "rows have their own tokens";
  EXPECT_GT(four["weight_bytes_per_step"], one["weight_bytes_per_step"]);
  // 21 tokens, 4 layers, K and V, 2 heads of 64, bf16.
  EXPECT_EQ(one["kv_bytes_per_step"], 21 * 4 * 2 * 2 * 64 * 2);
  EXPECT_EQ(four["kv_bytes_per_step"], 4 * 21 * 4 * 2 * 2 * 64 * 2);
  for (const auto& row : json["rows"]) {
    EXPECT_GT(row["tokens_per_second"], 0);
    EXPECT_LE(row["step_min_seconds"], row["step_median_seconds"]);
    EXPECT_GT(row["read_bytes_per_second"], 0);
    EXPECT_GT(row["bandwidth_share"], 0);
  }
}

TEST(BenchTest, PrefillAndTableRun) {
  std::vector<std::string> arguments = Small("prefill");
  EXPECT_EQ(Bench(arguments).status, 0);
  std::erase(arguments, "--json");
  const Outcome outcome = Bench(arguments);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("prefill, context 20"), HasSubstr("tokens/s")));
}

TEST(BenchTest, BadArgumentsAreNamed) {
  EXPECT_EQ(Bench({"train", "--model=x"}).status, 2);
  EXPECT_THAT(Bench({"train", "--model=x"}).err, HasSubstr("'train'"));
  EXPECT_THAT(Bench({"decode"}).err, HasSubstr("--model"));
  EXPECT_THAT(Bench({"decode", "--model=x", "--batch=1,0"}).err, HasSubstr("'0'"));
  EXPECT_EQ(Bench({"decode", "--model=/nonexistent"}).status, 1);
  EXPECT_THAT(Bench({"decode", "--model=models/lynx-tiny-moe", "--context=4000"}).err,
              HasSubstr("the model holds 2047"));
  EXPECT_EQ(Bench({"--help"}).status, 0);
}

TEST(BenchPlannerTest, CountsExpertsBeforeAndAfter) {
  const Outcome outcome = Bench({"planner", "--shapes=64x8,160x6", "--batch=1,16,80", "--samples=3",
                                 "--layer=false", "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  ASSERT_EQ(json["rows"].size(), 6u);
  for (const auto& row : json["rows"]) {
    EXPECT_EQ(row["composed"], row["experts_total"] == 160) << "only 64 were traced";
    EXPECT_GT(row["median_us"], 0);
    if (row["batch"] == 1) {
      EXPECT_EQ(row["experts"], row["top_k"]);
    } else {
      EXPECT_LT(row["experts"], row["experts_exact"]);
    }
  }
  EXPECT_THAT(Bench({"planner", "--shapes=64x8", "--batch=2", "--samples=1", "--layer=false"}).out,
              AllOf(HasSubstr("64x8"), HasSubstr("median us")));
}

TEST(BenchPlannerTest, BadArgumentsAreNamed) {
  EXPECT_EQ(Bench({"planner", "--shapes=64"}).status, 2);
  EXPECT_THAT(Bench({"planner", "--shapes=64"}).err, HasSubstr("'64'"));
  EXPECT_THAT(Bench({"planner", "--batch=0"}).err, HasSubstr("'0'"));
  EXPECT_THAT(Bench({"planner", "--policy=best"}).err, HasSubstr("'best'"));
  EXPECT_THAT(Bench({"planner", "--shapes=8x2", "--policy=oea:k0=3"}).err, HasSubstr("k0"));
  EXPECT_EQ(Bench({"planner", "--traces=/nonexistent.bin"}).status, 1);
  EXPECT_THAT(Bench({"planner", "--traces=models/router-traces/absent.bin"}).err,
              HasSubstr("absent.json"));
}

TEST(BenchPlannerTest, BrokenTracesAreNamed) {
  testing::TempDir dir;
  std::vector<float> logits(2 * 2 * 3 * 4, 1.0f);
  logits[((1 * 2 + 0) * 3 + 2) * 4 + 1] = std::numeric_limits<float>::quiet_NaN();
  dir.Write("t.bin", {reinterpret_cast<const char*>(logits.data()), logits.size() * sizeof(float)});
  dir.Write("t.json", R"({"shape":[2,2,3,4]})");
  const std::string traces = "--traces=" + (dir.path() / "t.bin").string();
  Outcome outcome = Bench({"planner", traces, "--shapes=4x2", "--layer=false"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("step 1, layer 0, sequence 2"));
  dir.Write("t.json", R"({"shape":[2,2,3,4])");
  outcome = Bench({"planner", traces});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("t.json: is not valid JSON"));
}

}  // namespace
}  // namespace lynx::cli
