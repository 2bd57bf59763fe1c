#include "services/cli/bench/bench.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/core/isa.h"

namespace lynx::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kHidden = 192;  // Of models/lynx-tiny-moe.

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
  return {mode,         "--batch=1,4", "--context=20", "--chunk=8",          "--steps=2",
          "--rounds=2", "--threads=2", "--json",       "--read-buffer=64MiB"};
}

nlohmann::json Results(std::vector<std::string> arguments, const std::vector<std::string>& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  const Outcome outcome = Bench(arguments);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return nlohmann::json::array();
  EXPECT_GT(json["bandwidth_gb_s"], 0);
  for (const auto& row : json["results"]) {
    EXPECT_GT(row["tokens_per_s"], 0);
    EXPECT_LE(row["step_ms_p50"], row["step_ms_p99"]);
    EXPECT_GT(row["bandwidth_share"], 0);
    EXPECT_EQ(row["streamed_share"], 1) << "kernels read what the plans say";
  }
  return json["results"];
}

TEST(BenchTest, MemoryMeasuresReadBandwidth) {
  const std::vector<std::string> arguments = {"memory", "--read-buffer=64MiB", "--passes=2"};
  EXPECT_EQ(Results(arguments, {"--json"}).size(), 0u);
  EXPECT_THAT(Bench(arguments).out, AllOf(HasSubstr("over 64 MiB"), HasSubstr("2 passes")));
}

TEST(BenchTest, DecodeCountsTheBytesOfAStep) {
  const auto results = Results(Small("decode"), {"--model=models/lynx-tiny-moe"});
  ASSERT_EQ(results.size(), 2u);
  const auto& one = results[0];
  const auto& four = results[1];
  EXPECT_EQ(one["batch"], 1);
  EXPECT_EQ(one["policy"], "exact");
  EXPECT_EQ(one["experts"], 8) << "top-8 of one row";
  EXPECT_GT(four["experts"], 8) << "rows have their own tokens";
  EXPECT_GT(four["bytes_per_step"], one["bytes_per_step"]);
}

TEST(BenchTest, RowsOfAPromptRideAlongWithDecode) {
  for (const char* what : {"--model=models/lynx-tiny-moe", "--shape=olmoe-1b-7b"}) {
    SCOPED_TRACE(what);
    std::vector<std::string> arguments = Small("decode");
    arguments.insert(arguments.end(), {"--prompt-rows=0,12", "--policy=exact,lynx"});
    if (std::string(what).starts_with("--shape")) arguments.push_back("--layers=1");
    const auto exact = Results(arguments, {what});
    ASSERT_EQ(exact.size(), 8u);
    EXPECT_EQ(exact[6]["prompt_rows"], 12);
    EXPECT_EQ(exact[6]["batch"], 4);
    EXPECT_GT(exact[6]["experts"], exact[4]["experts"]);
    EXPECT_EQ(exact[7]["experts"], exact[6]["experts"]) << "nothing is remapped in mixed steps";
    const auto piggyback = Results(arguments, {what, "--mixed-steps=piggyback"});
    ASSERT_EQ(piggyback.size(), 8u);
    EXPECT_LT(piggyback[7]["experts"], piggyback[6]["experts"]);
  }
  const auto refused = [](const std::string& mode, const std::string& rows) {
    std::vector<std::string> arguments = Small(mode);
    arguments.insert(arguments.end(), {"--model=models/lynx-tiny-moe", rows});
    const Outcome outcome = Bench(arguments);
    EXPECT_EQ(outcome.status, 2);
    return outcome.err;
  };
  EXPECT_THAT(refused("decode", "--prompt-rows=21"), HasSubstr("--prompt-rows"));
  EXPECT_THAT(refused("decode", "--prompt-rows=-1"), HasSubstr("--prompt-rows"));
  EXPECT_THAT(refused("prefill", "--prompt-rows=4"), HasSubstr("--prompt-rows"));
}

TEST(BenchTest, AShapeReadsWhatItsModelWould) {
  // Only the routing differs: made up from traces in one, from the model's router in the other. A
  // single row has top-k experts in both.
  const auto model = Results(Small("decode"), {"--model=models/lynx-tiny-moe"});
  const auto shape = Results(Small("decode"), {"--shape=models/lynx-tiny-moe/config.json"});
  ASSERT_EQ(shape.size(), 2u);
  ASSERT_EQ(model.size(), 2u);
  EXPECT_EQ(shape[0]["bytes_per_step"], model[0]["bytes_per_step"]);
}

TEST(BenchTest, PoliciesTakeTurnsOnTheSameRouting) {
  const auto results =
      Results(Small("decode"), {"--shape=models/lynx-tiny-moe/config.json", "--layers=1",
                                "--policy=exact,lynx:alpha=1,beta=1", "--context=40"});
  ASSERT_EQ(results.size(), 8u);
  for (size_t i = 0; i < 8; i += 2) {
    const auto& exact = results[i];
    const auto& lynx = results[i + 1];
    EXPECT_EQ(exact["policy"], "exact");
    EXPECT_EQ(lynx["batch"], exact["batch"]);
    EXPECT_EQ(lynx["context"], i < 4 ? 20 : 40);
    if (exact["batch"] == 1) {
      EXPECT_EQ(lynx["experts"], exact["experts"]) << "a batch of one is exact";
      EXPECT_EQ(lynx["against_exact"]["bytes"], 1);
    } else {
      EXPECT_LT(lynx["experts"], exact["experts"]);
      EXPECT_LT(lynx["against_exact"]["bytes"], 1);
    }
    EXPECT_GT(lynx["against_exact"]["time"], 0);
  }
}

TEST(BenchTest, PrefillCountsWholePrompts) {
  const auto results = Results(Small("prefill"), {"--shape=models/lynx-tiny-moe/config.json"});
  ASSERT_EQ(results.size(), 2u);
  EXPECT_GT(results[0]["gflop_s"], 0);
  std::vector<std::string> whole = Small("prefill");
  std::replace(whole.begin(), whole.end(), std::string("--chunk=8"), std::string("--chunk=20"));
  const auto at_once = Results(whole, {"--shape=models/lynx-tiny-moe/config.json"});
  ASSERT_EQ(at_once.size(), 2u);
  EXPECT_GT(results[0]["bytes_per_step"], at_once[0]["bytes_per_step"])
      << "chunks of 8, 8 and 4 tokens each read the weights again";
}

TEST(BenchTest, AShapeMayBeLongerThanItsModel) {
  const Outcome outcome =
      Bench({"decode", "--shape=models/lynx-tiny-moe/config.json", "--batch=1", "--context=3000",
             "--steps=1", "--rounds=1", "--threads=2", "--read-buffer=64MiB"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("note: runs beyond the 2048 positions of the model"));
}

// Both roofs and shares of them would be those of other kernels.
TEST(BenchTest, TheRoofIsThatOfTheInstructionSetThatRuns) {
  const auto report = [](const std::string& isa) {
    std::vector<std::string> arguments = Small("prefill");
    arguments.push_back("--shape=models/lynx-tiny-moe/config.json");
    arguments.push_back("--isa=" + isa);
    return nlohmann::json::parse(Bench(arguments).out, nullptr, /*allow_exceptions=*/false);
  };
  const auto portable = report("portable");
  EXPECT_EQ(portable["arithmetic_isa"], "portable");
  EXPECT_THAT(std::string(portable["numeric_class"]), HasSubstr("cpu-portable/"));
  EXPECT_GT(portable["arithmetic_gflop_s"], 0);
  const std::string best(kernels::Name(kernels::BestIsa()));
  EXPECT_EQ(report("auto")["arithmetic_isa"], best);
}

TEST(BenchTest, TablesNameWhatRan) {
  for (const std::string mode : {"decode", "prefill"}) {
    std::vector<std::string> arguments = Small(mode);
    std::erase(arguments, "--json");
    arguments.push_back("--shape=models/lynx-tiny-moe/config.json");
    const Outcome outcome = Bench(arguments);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_THAT(outcome.out, AllOf(HasSubstr(mode + ", models/lynx-tiny-moe/config.json, 4 layers"),
                                   HasSubstr("tokens/s"), HasSubstr("exact")));
  }
}

TEST(BenchTest, BadArgumentsAreNamed) {
  const auto fails = [](const std::vector<std::string>& arguments, int status,
                        const std::string& text) {
    const Outcome outcome = Bench(arguments);
    EXPECT_EQ(outcome.status, status) << text;
    EXPECT_THAT(outcome.err, HasSubstr(text));
  };
  fails({"train"}, 2, "'train'");
  fails({}, 2, "usage");
  fails({"decode"}, 2, "--model and --shape");
  fails({"decode", "--model=x", "--shape=y"}, 2, "--model and --shape");
  fails({"decode", "--model=x", "--batch=1,0"}, 2, "'0'");
  fails({"decode", "--model=x", "--context=none"}, 2, "--context: 'none'");
  fails({"decode", "--model=x", "--layers=1"}, 2, "--layers");
  fails({"decode", "--model=/nonexistent"}, 1, "/nonexistent");
  fails({"decode", "--shape=olmo"}, 2, "--shape: 'olmo'");
  fails({"decode", "--shape=olmo"}, 2, "olmoe-1b-7b");
  fails({"decode", "--shape=olmoe-1b-7b", "--layers=17"}, 2, "the shape has 16");
  fails({"decode", "--shape=olmoe-1b-7b", "--policy=best"}, 2, "'best'");
  fails({"decode", "--model=models/lynx-tiny-moe", "--context=4000"}, 2, "the model holds 2047");
  fails({"memory", "--passes=0"}, 2, "passes");
  fails({"router", "--rate=0"}, 2, "--rate");
  fails({"router", "--streams=100000"}, 2, "--streams: 100000 take 200128");
  fails({"router", "--rounds=1000"}, 2, "--rounds");
  fails({"router", "--model=/nonexistent"}, 1, "/nonexistent");
  fails({"transfer", "--transports=tcp,rdma"}, 2, "--transports: 'rdma'");
  fails({"transfer", "--payload=0"}, 2, "--payload");
  fails({"transfer", "--layers=17"}, 2, "the shape has 16");
  fails({"transfer", "--shape=olmo"}, 2, "--shape: 'olmo'");
  fails({"decode", "--model=x", "--batch=1,,2"}, 2, "--batch: '1,,2'");
  fails({"decode", "--model=x", "--read-buffer=1"}, 2, "--read-buffer: 1, wanted at least 64MiB");
  fails({"memory", "--read-buffer=1"}, 2, "--read-buffer: 1, wanted at least 64MiB");
  EXPECT_EQ(Bench({"--help"}).status, 0);
  EXPECT_EQ(Bench({"decode", "--help"}).status, 0);
}

TEST(BenchTest, WhatCannotBeRunIsRefusedBeforeItIsAllocated) {
  const Outcome outcome =
      Bench({"decode", "--shape=mixtral-8x7b", "--batch=4096", "--context=32000"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("KV cache"), HasSubstr("are available")));
  for (const std::string shape : {"mixtral-8x7b", "deepseek-v2-lite"}) {
    const Outcome absurd = Bench(
        {"decode", "--shape=" + shape, "--batch=4096", "--context=1048576", "--kv-dtype=f32"});
    EXPECT_EQ(absurd.status, 1);
    EXPECT_THAT(absurd.err, AllOf(HasSubstr("KV cache"), HasSubstr("are available")));
  }
  const Outcome memory = Bench({"memory", "--read-buffer=100TiB"});
  EXPECT_EQ(memory.status, 1);
  EXPECT_THAT(memory.err, AllOf(HasSubstr("read buffer"), HasSubstr("are available")));
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

TEST(BenchPlannerTest, CountsExpertsOfTheFullestRankByPlacement) {
  const Outcome outcome = Bench({"planner", "--shapes=64x8", "--batch=16", "--ep=8", "--samples=1",
                                 "--ep-spare=0,2", "--layer=false", "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  ASSERT_EQ(json["placements"].size(), 2u);
  for (const auto& row : json["placements"]) {
    EXPECT_LE(row["least"], row["by_activity"]);
    EXPECT_LE(row["by_activity"], row["even"]);
    EXPECT_LE(row["by_tokens"], row["split"]);
    EXPECT_LE(row["policy_least"], row["policy_by_activity"]);
    EXPECT_LT(row["policy_by_activity"], row["by_activity"]);
  }
  EXPECT_EQ(json["placements"][0]["by_tokens"], json["placements"][0]["split"]) << "no copies";
  EXPECT_LT(json["placements"][1]["by_activity"], json["placements"][0]["by_activity"]);
}

TEST(BenchRanksTest, FormsOfExpertParallelismTakeTurnsOnTheSameRouting) {
  const std::vector<std::string> arguments = {
      "ranks",       "--shape=models/lynx-tiny-moe/config.json",
      "--ep=2",      "--layers=2",
      "--batch=1,4", "--context=20",
      "--steps=2",   "--rounds=2"};
  std::vector<std::string> as_json = arguments;
  as_json.push_back("--json");
  const Outcome outcome = Bench(as_json);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  ASSERT_EQ(json["results"].size(), 6u);
  for (size_t i = 0; i < 6; i += 3) {
    const auto& sum = json["results"][i];
    const auto& wide = json["results"][i + 1];
    const auto& all_to_all = json["results"][i + 2];
    EXPECT_EQ(sum["form"], "sum");
    EXPECT_EQ(wide["form"], "order-free sum");
    EXPECT_EQ(all_to_all["form"], "all-to-all");
    const int64_t batch = sum["batch"];
    EXPECT_EQ(batch, i == 0 ? 1 : 4);
    // Each rank's part to the other: embeddings, and of each layer the sums behind attention and
    // behind the experts, with a value that says whether to go on.
    const int64_t values = batch * kHidden;
    EXPECT_EQ(double{sum["kib_sent"]} * 1024, 4 * values + 2 * 2 * 4 * (values + 1));
    EXPECT_EQ(double{wide["kib_sent"]} * 1024, 4 * values + 2 * (4 + 8) * (values + 1));
    EXPECT_GT(all_to_all["kib_sent"], 0);
    EXPECT_LT(all_to_all["kib_sent"], sum["kib_sent"]);
    EXPECT_EQ(sum["ratio"], 1);
    EXPECT_EQ(all_to_all["experts"], sum["experts"]);
    EXPECT_LE(wide["experts"], sum["experts"]) << "a choice among copies";
    EXPECT_GE(sum["experts"], 4) << "half of the top-8 of one row, at the least";
    for (const auto& row : {sum, wide, all_to_all}) {
      EXPECT_GT(row["step_ms"], 0);
      EXPECT_GT(row["exchange_ms"], 0);
      EXPECT_GT(row["collective_share"], 0);
      EXPECT_LT(row["collective_share"], 1);
    }
  }
  EXPECT_THAT(Bench(arguments).out,
              AllOf(HasSubstr("lynx-tiny-moe/config.json, 2 layers"), HasSubstr("all-to-all")));
}

TEST(BenchRanksTest, WhatDoesNotFitIsNamed) {
  const auto refused = [](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"ranks"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = Bench(arguments);
    EXPECT_EQ(outcome.status, 2);
    return outcome.err;
  };
  EXPECT_THAT(refused({"--ep=1"}), HasSubstr("--ep"));
  EXPECT_THAT(refused({"--ep=3"}), HasSubstr("3"));
  EXPECT_THAT(refused({"--batch=0"}), HasSubstr("--batch"));
  EXPECT_THAT(refused({"--layers=17"}), HasSubstr("the shape has 16"));
  EXPECT_THAT(refused({"--context=5000"}), HasSubstr("--context"));
  EXPECT_THAT(refused({"--shape=olmo"}), HasSubstr("'olmo'"));
}

TEST(BenchPlannerTest, BadArgumentsAreNamed) {
  EXPECT_THAT(Bench({"planner", "--ep=2", "--ep-spare=-1", "--layer=false"}).err,
              HasSubstr("'-1'"));
  EXPECT_THAT(Bench({"planner", "--ep-spare=1", "--layer=false"}).err, HasSubstr("give --ep, too"));
  EXPECT_EQ(Bench({"planner", "--shapes=64"}).status, 2);
  EXPECT_THAT(Bench({"planner", "--shapes=64"}).err, HasSubstr("'64'"));
  EXPECT_THAT(Bench({"planner", "--batch=0"}).err, HasSubstr("'0'"));
  EXPECT_THAT(Bench({"planner", "--policy=best"}).err, HasSubstr("'best'"));
  EXPECT_THAT(Bench({"planner", "--shapes=8x2", "--policy=oea:k0=3"}).err, HasSubstr("k0"));
  EXPECT_EQ(Bench({"planner", "--traces=/nonexistent.bin"}).status, 1);
  EXPECT_THAT(Bench({"planner", "--traces=models/router-traces/absent.bin"}).err,
              HasSubstr("absent.json"));
}

}  // namespace
}  // namespace lynx::cli
