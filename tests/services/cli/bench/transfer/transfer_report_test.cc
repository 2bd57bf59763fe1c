#include "services/cli/bench/transfer/transfer_report.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TransferReport Report() {
  return {.shape = "some-shape",
          .layers = 3,
          .kv_dtype = "bf16",
          .tokens = 2000,
          .prompt_bytes = 262'100'000,
          .block_bytes = 131072,
          .message_bytes = 1 << 20,
          .chunk = 0,
          .threads = 0,
          .notes = {"not all of it"},
          .results =
              {{.transport = "tcp",
                .bytes_per_s = 3.5e9,
                .perftest_bytes_per_s = 4e9,
                .share = 0.875,
                .share_low = 0.75,
                .share_high = 1},
               {.transport = "shm", .bytes_per_s = 5e9, .perftest_bytes_per_s = {}, .share = {}}},
          .overlap = {}};
}

TransferReport OverlapReport() {
  TransferReport report = Report();
  report.results.clear();
  report.chunk = 512;
  report.threads = 2;
  report.overlap = {{.transport = "tcp",
                     .alone_ms = 1000,
                     .compute_ms = 1050,
                     .slowdown = 0.05,
                     .transfer_ms = 80,
                     .exposed_ms = 10,
                     .exposed_share = 0.125}};
  return report;
}

nlohmann::json Json(const TransferReport& report) {
  std::ostringstream out;
  PrintTransferJson(report, out);
  return nlohmann::json::parse(out.str());
}

TEST(TransferReportTest, JsonHasTheKeysThatScriptsRead) {
  const auto json = Json(Report());
  EXPECT_EQ(json["mode"], "transfer");
  EXPECT_EQ(json["prompt_bytes"], 262'100'000);
  EXPECT_EQ(json["notes"][0], "not all of it");
  ASSERT_EQ(json["results"].size(), 2u);
  EXPECT_EQ(json["results"][0]["handoff_gb_s"], 3.5);
  EXPECT_EQ(json["results"][0]["ucx_perftest_gb_s"], 4);
  EXPECT_EQ(json["results"][0]["share"], 0.875);
  EXPECT_FALSE(json["results"][1].contains("share")) << "there was nothing to compare with";
  EXPECT_FALSE(json.contains("overlap"));
}

TEST(TransferReportTest, JsonOfAnOverlap) {
  const auto json = Json(OverlapReport());
  EXPECT_EQ(json["chunk"], 512);
  ASSERT_EQ(json["overlap"].size(), 1u);
  EXPECT_EQ(json["overlap"][0]["slowdown"], 0.05);
  EXPECT_EQ(json["overlap"][0]["exposed_share"], 0.125);
  EXPECT_EQ(json["results"].size(), 0u);
}

TEST(TransferReportTest, TablesShowWhatWasMeasured) {
  std::ostringstream moved;
  PrintTransferTable(Report(), moved);
  EXPECT_THAT(moved.str(), AllOf(HasSubstr("262.1 MB"), HasSubstr("note: not all of it"),
                                 HasSubstr("88%       75 to 100%"), Not(HasSubstr("exposed"))));
  std::ostringstream overlap;
  PrintTransferTable(OverlapReport(), overlap);
  EXPECT_THAT(overlap.str(), AllOf(HasSubstr("chunks of 512 tokens by 2 threads"),
                                   HasSubstr("12.5%"), Not(HasSubstr("ucx_perftest"))));
}

}  // namespace
}  // namespace lynx::cli
