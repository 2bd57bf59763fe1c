#include "common/node/node_memory.h"

#include <string>
#include <vector>

#include "common/config/flag_set.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace lynx::node {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int32_t kContext = 32768;
constexpr int64_t kMib = 1 << 20;
constexpr int64_t kGb = 1'000'000'000;

// 2 MiB a block: 4 GiB and one block for one context.
kv::KvLayout Layout() {
  return {.layers = 32, .kv_heads = 8, .head_dim = 128, .dtype = DType::kBf16};
}

absl::StatusOr<int32_t> BlocksOf(int64_t kv_memory, int32_t context = kContext) {
  NodeConfig config;
  config.kv_memory_bytes = kv_memory;
  return KvBlocks(config, Layout(), context, 512);
}

TEST(NodeMemoryTest, KvMemoryIsKept) {
  ASSERT_EQ(Layout().BlockBytes(), 2 * kMib);
  EXPECT_EQ(*BlocksOf(8192 * kMib), 4096);
  EXPECT_EQ(*BlocksOf(8193 * kMib), 4096);
  EXPECT_EQ(*BlocksOf(4098 * kMib), 2049) << "one context to the block";
  EXPECT_EQ(*BlocksOf(64 * kMib, 256), 32);
}

TEST(NodeMemoryTest, LessThanOneContextIsRefusedWithWhatIsNeeded) {
  EXPECT_THAT(BlocksOf(64 * kMib),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("--kv-memory 64MiB is less than one context of 32768 tokens "
                                       "needs, 4098MiB"),
                             HasSubstr("lower --max-context-tokens; 496 would fit"))));
  EXPECT_THAT(BlocksOf(4098 * kMib - 1), Not(IsOk()));
  EXPECT_THAT(BlocksOf(1), StatusIs(absl::StatusCode::kInvalidArgument, Not(HasSubstr("fit"))));
}

TEST(NodeMemoryTest, TheContextItNamesFits) {
  for (int64_t mib : {5, 100, 1000, 4097}) {
    const std::string error(BlocksOf(mib * kMib).status().message());
    const size_t at = error.find("; ");
    ASSERT_NE(at, std::string::npos) << error;
    const int32_t context = std::stoi(error.substr(at + 2));
    EXPECT_THAT(BlocksOf(mib * kMib, context), IsOk());
    EXPECT_THAT(BlocksOf(mib * kMib, context + 1), Not(IsOk()));
  }
}

// Windows take little of a context however long it is.
TEST(NodeMemoryTest, WindowsNeedLess) {
  kv::KvLayout layout = Layout();
  layout.groups = kv::KvGroups(std::vector<kv::Reach>(32, {.window = 128}));
  NodeConfig config;
  config.kv_memory_bytes = 100 * kMib;
  EXPECT_THAT(KvBlocks(config, layout, kContext, 512), IsOk());
}

TEST(NodeMemoryTest, WithoutAWordOneContextFits) {
  EXPECT_EQ(*BlocksOf(0), 2049);
  EXPECT_EQ(*BlocksOf(0, 1024), 512) << "1 GiB";
}

// Of a GPU with 80 GB free, 30 of which weights, steps and the reserve take.
absl::StatusOr<int32_t> OnDevice(const NodeConfig& config, int64_t free = 80 * kGb) {
  const model::DeviceRoom room{.need = {.weights = 25 * kGb, .steps = 2 * kGb},
                               .free = free,
                               .reserve = 3 * kGb};
  return DeviceKvBlocks(config, Layout(), kContext, 512, room);
}

TEST(NodeMemoryTest, OnADeviceKvHasWhatIsLeft) {
  NodeConfig config;
  EXPECT_EQ(*OnDevice(config), 50 * kGb / (2 * kMib));
  config.kv_memory_bytes = 8192 * kMib;
  EXPECT_EQ(*OnDevice(config), 4096);
  config.kv_blocks = 7;
  EXPECT_EQ(*OnDevice(config), 7) << "stands as given";
}

TEST(NodeMemoryTest, WhatADeviceDoesNotHaveIsReckonedUp) {
  NodeConfig config;
  EXPECT_THAT(OnDevice(config, 34 * kGb),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("34.00 GB are free; needed are weights 25.00, buffers of a "
                                       "step 2.00, KV cache 4.30 for one context of 32768, reserve "
                                       "3.00: lower --max-context-tokens"),
                             Not(HasSubstr("--kv-memory")))));
  config.kv_memory_bytes = 51 * kGb;
  EXPECT_THAT(OnDevice(config), StatusIs(absl::StatusCode::kResourceExhausted,
                                         AllOf(HasSubstr("KV cache 51.00, reserve"),
                                               HasSubstr("--kv-memory"))));
  EXPECT_THAT(OnDevice(config, 20 * kGb),
              StatusIs(absl::StatusCode::kResourceExhausted, Not(HasSubstr("lower"))))
      << "the weights alone are too many";
  config.kv_memory_bytes = 64 * kMib;
  EXPECT_THAT(OnDevice(config), StatusIs(absl::StatusCode::kInvalidArgument,
                                         HasSubstr("less than one context")));
}

TEST(NodeMemoryTest, BlocksStandAsGiven) {
  NodeConfig config;
  config.kv_blocks = 3;
  config.kv_memory_bytes = 1;
  EXPECT_EQ(*KvBlocks(config, Layout(), kContext, 512), 3);
}

TEST(NodeMemoryTest, WhatTheProcessMayNotTakeIsRefusedWithTheNumbers) {
  const model::MemoryNeed need{.weights = 14 * kGb, .kv = 2 * kGb, .steps = kGb / 2};
  EXPECT_THAT(CheckNodeMemory(need, 17 * kGb), IsOk());
  EXPECT_THAT(CheckNodeMemory(need, 16 * kGb),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("16.50 GB"), HasSubstr("weights 14.00"),
                             HasSubstr("KV cache 2.00"), HasSubstr("may take 16.00"),
                             HasSubstr("--kv-memory"), HasSubstr("--step-rows"))));
  EXPECT_THAT(CheckNodeMemory(need, 13 * kGb),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("give it more"), Not(HasSubstr("--kv-memory")))))
      << "the weights alone are more";
}

}  // namespace
}  // namespace lynx::node
