#include "services/cli/bench/memory_need.h"

#include <cstdint>
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/cli/bench/model_shape.h"
#include "tests/support/status_matchers.h"

namespace lynx::cli {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kGb = 1'000'000'000;

TEST(MemoryNeedTest, CountsWeightsAndCache) {
  const auto shape = LoadModelShape("olmoe-1b-7b");
  ASSERT_THAT(shape, IsOk());
  const MemoryNeed need = NeedOf(shape->spec, {.kv_blocks = 16, .rows = 16, .logits_rows = 16});
  EXPECT_EQ(need.weights, 2 * MatrixParameters(shape->spec));
  EXPECT_EQ(need.kv, 16 * 16 * (128 << 10)) << "128 KiB a token";
  EXPECT_GE(need.steps, 16 * 50304 * 4) << "logits";
}

TEST(MemoryNeedTest, LatentsTakeLittleCache) {
  const auto shape = LoadModelShape("deepseek-v2-lite");
  ASSERT_THAT(shape, IsOk());
  const MemoryNeed need = NeedOf(shape->spec, {.kv_blocks = 16, .rows = 16, .logits_rows = 16});
  EXPECT_EQ(need.kv, 16 * 16 * 27 * (512 + 64) * 2) << "30.4 KiB a token";
}

TEST(MemoryNeedTest, WhatDoesNotFitIsRefusedWithWhatWould) {
  const auto shape = LoadModelShape("qwen3-30b-a3b");
  ASSERT_THAT(shape, IsOk());
  MemoryNeed need = NeedOf(shape->spec, {.kv_blocks = 1024, .rows = 16, .logits_rows = 16});
  need.read_buffer = 2 * kGb;
  EXPECT_THAT(CheckFits(need, shape->spec, 100 * kGb), IsOk());
  EXPECT_THAT(CheckFits(need, shape->spec, 22 * kGb),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("weights of 48 layers 61.1"),
                             HasSubstr("22.0 are available"), HasSubstr("--layers 14 would fit"))));
  EXPECT_THAT(CheckFits(need, shape->spec, 1 * kGb),
              StatusIs(absl::StatusCode::kResourceExhausted, Not(HasSubstr("would fit"))));
}

TEST(MemoryNeedTest, TheLayersItNamesFit) {
  auto shape = LoadModelShape("qwen3-30b-a3b");
  ASSERT_THAT(shape, IsOk());
  const StepSizes sizes{.kv_blocks = 1024, .rows = 16, .logits_rows = 16};
  const std::string error(CheckFits(NeedOf(shape->spec, sizes), shape->spec, 22 * kGb).message());
  const size_t at = error.find("--layers ");
  ASSERT_NE(at, std::string::npos);
  const int32_t layers = std::stoi(error.substr(at + 9));
  KeepLayers(layers, shape->spec);
  EXPECT_THAT(CheckFits(NeedOf(shape->spec, sizes), shape->spec, 22 * kGb), IsOk());
  shape = LoadModelShape("qwen3-30b-a3b");
  KeepLayers(layers + 1, shape->spec);
  EXPECT_THAT(CheckFits(NeedOf(shape->spec, sizes), shape->spec, 22 * kGb), Not(IsOk()));
}

TEST(MemoryNeedTest, ReadsWhatTheSystemSays) {
  EXPECT_EQ(AvailableOf("MemTotal:  24 kB\nMemFree: 3 kB\nMemAvailable:   20 kB\nX: 1 kB\n"),
            20 * 1024);
  EXPECT_EQ(AvailableOf("MemTotal: 24 kB\n"), 0);
  EXPECT_EQ(AvailableOf("MemAvailable: many kB\n"), 0);
  EXPECT_EQ(AvailableOf(""), 0);
  EXPECT_GT(AvailableMemory(), 0);
  EXPECT_LT(AvailableMemory(), int64_t{1} << 50);
}

TEST(MemoryNeedTest, ReadsWhatACgroupLeaves) {
  constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  const char* stat = "anon 1\ninactive_file 300\nfile 500\n";
  EXPECT_EQ(LeftInCgroup("1000\n", "700\n", ""), 300);
  EXPECT_EQ(LeftInCgroup("1000\n", "700\n", stat), 600);
  EXPECT_EQ(LeftInCgroup("1000", "200", stat), 1000);
  EXPECT_EQ(LeftInCgroup("1000", "2000", stat), 0);
  EXPECT_EQ(LeftInCgroup("1000", "700", "inactive_file 1\ntotal_inactive_file 200\n"), 500);
  EXPECT_EQ(LeftInCgroup("max\n", "700\n", stat), kNoLimit);
  EXPECT_EQ(LeftInCgroup("", "", ""), kNoLimit);
}

TEST(MemoryNeedTest, TheReadBufferGivesWayToLittleMemory) {
  EXPECT_EQ(DefaultReadBuffer(int64_t{64} << 30), int64_t{2} << 30);
  EXPECT_EQ(DefaultReadBuffer(int64_t{1} << 30), int64_t{512} << 20);
  EXPECT_EQ(DefaultReadBuffer(0), int64_t{64} << 20);
}

}  // namespace
}  // namespace lynx::cli
