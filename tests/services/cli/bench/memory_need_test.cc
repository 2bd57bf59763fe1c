#include "services/cli/bench/memory_need.h"

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

model::MemoryNeed NeedOf(const model::ModelSpec& spec, const model::StepSizes& sizes) {
  return model::NeedOf(spec, WeightBytes(spec), sizes);
}

TEST(MemoryNeedTest, CountsWeightsAndCache) {
  const auto shape = LoadModelShape("olmoe-1b-7b");
  ASSERT_THAT(shape, IsOk());
  const auto need = NeedOf(shape->spec, {.kv_blocks = 16, .rows = 16, .logits_rows = 16});
  EXPECT_EQ(need.weights, 2 * MatrixParameters(shape->spec));
  EXPECT_EQ(need.kv, 16 * 16 * (128 << 10)) << "128 KiB a token";
  EXPECT_GE(need.steps, 16 * 50304 * 4) << "logits";
  EXPECT_EQ(need.total(), need.weights + need.kv + need.steps);
}

TEST(MemoryNeedTest, LatentsTakeLittleCache) {
  const auto shape = LoadModelShape("deepseek-v2-lite");
  ASSERT_THAT(shape, IsOk());
  const auto need = NeedOf(shape->spec, {.kv_blocks = 16, .rows = 16, .logits_rows = 16});
  EXPECT_EQ(need.kv, 16 * 16 * 27 * (512 + 64) * 2) << "30.4 KiB a token";
}

TEST(MemoryNeedTest, WhatIsBeyondCountingIsRefused) {
  const auto shape = LoadModelShape("mixtral-8x7b");
  ASSERT_THAT(shape, IsOk());
  const auto need = NeedOf(shape->spec, {.kv_blocks = std::numeric_limits<int64_t>::max() / 1024});
  EXPECT_EQ(need.kv, std::numeric_limits<int64_t>::max());
  EXPECT_EQ(need.total(), std::numeric_limits<int64_t>::max());
  EXPECT_THAT(CheckFits(need, kGb, shape->spec, 1000 * kGb),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("KV cache 9223372036.9")));
}

TEST(MemoryNeedTest, WhatDoesNotFitIsRefusedWithWhatWould) {
  const auto shape = LoadModelShape("qwen3-30b-a3b");
  ASSERT_THAT(shape, IsOk());
  const auto need = NeedOf(shape->spec, {.kv_blocks = 1024, .rows = 16, .logits_rows = 16});
  EXPECT_THAT(CheckFits(need, 2 * kGb, shape->spec, 100 * kGb), IsOk());
  EXPECT_THAT(CheckFits(need, 2 * kGb, shape->spec, 22 * kGb),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("weights of 48 layers 61.1"),
                             HasSubstr("22.0 are available"), HasSubstr("--layers 14 would fit"))));
  EXPECT_THAT(CheckFits(need, 2 * kGb, shape->spec, 1 * kGb),
              StatusIs(absl::StatusCode::kResourceExhausted, Not(HasSubstr("would fit"))));
}

TEST(MemoryNeedTest, TheLayersItNamesFit) {
  auto shape = LoadModelShape("qwen3-30b-a3b");
  ASSERT_THAT(shape, IsOk());
  const model::StepSizes sizes{.kv_blocks = 1024, .rows = 16, .logits_rows = 16};
  const std::string error(
      CheckFits(NeedOf(shape->spec, sizes), 0, shape->spec, 22 * kGb).message());
  const size_t at = error.find("--layers ");
  ASSERT_NE(at, std::string::npos);
  const int32_t layers = std::stoi(error.substr(at + 9));
  KeepLayers(layers, shape->spec);
  EXPECT_THAT(CheckFits(NeedOf(shape->spec, sizes), 0, shape->spec, 22 * kGb), IsOk());
  shape = LoadModelShape("qwen3-30b-a3b");
  KeepLayers(layers + 1, shape->spec);
  EXPECT_THAT(CheckFits(NeedOf(shape->spec, sizes), 0, shape->spec, 22 * kGb), Not(IsOk()));
}

TEST(MemoryNeedTest, TheReadBufferGivesWayToLittleMemory) {
  EXPECT_EQ(DefaultReadBuffer(int64_t{64} << 30), int64_t{2} << 30);
  EXPECT_EQ(DefaultReadBuffer(int64_t{1} << 30), int64_t{512} << 20);
  EXPECT_EQ(DefaultReadBuffer(0), int64_t{64} << 20);
}

TEST(MemoryNeedTest, AReadBufferThatCachesHoldIsRefusedOrTold) {
  EXPECT_THAT(CheckReadBuffer(0), IsOk());
  EXPECT_THAT(CheckReadBuffer(int64_t{64} << 20), IsOk());
  EXPECT_THAT(CheckReadBuffer((int64_t{64} << 20) - 1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at least 64MiB")));
  EXPECT_EQ(CacheNote(int64_t{64} << 20, int64_t{32} << 20), std::nullopt);
  EXPECT_EQ(CacheNote(int64_t{64} << 20, 0), std::nullopt);
  EXPECT_THAT(CacheNote(int64_t{64} << 20, int64_t{33} << 20).value_or(""),
              AllOf(HasSubstr("64 MiB"), HasSubstr("cache, 33 MiB")));
}

}  // namespace
}  // namespace lynx::cli
