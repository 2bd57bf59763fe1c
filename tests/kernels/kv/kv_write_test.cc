#include "kernels/kv/kv_write.h"

#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/cuda_emulation/emulated_context.h"
#include "tests/support/kernel_test.h"

namespace lynx::kernels {
namespace {

using ::lynx::testing::AllContextsAndCuda;
using ::lynx::testing::ContextParamName;
using ::lynx::testing::KernelTest;
using ::lynx::testing::RandomNormal;

constexpr std::byte kUntouched{0xa5};

struct Shape {
  size_t rows, heads, head_dim;
  DType dtype;
};

// The arena after writing `rows` tokens to slots spread over 5 blocks.
std::vector<std::byte> Write(const Shape& s, const ExecContext& ctx) {
  const size_t stride = 2 * s.heads * 16 * s.head_dim * SizeOf(s.dtype) + 64;
  std::vector<std::byte> arena(5 * stride, kUntouched);
  const auto k = RandomNormal(s.rows * s.heads * s.head_dim, 3);
  const auto v = RandomNormal(s.rows * s.heads * s.head_dim, 5);
  std::vector<KvSlot> slots;
  for (size_t r = 0; r < s.rows; ++r) {
    slots.push_back(
        {.block = static_cast<int32_t>(4 - r / 16), .offset = static_cast<int32_t>(r % 16)});
  }
  const absl::Status status = KvWrite({.k = k.data(),
                                       .v = v.data(),
                                       .slots = slots.data(),
                                       .kv = arena.data(),
                                       .rows = static_cast<int64_t>(s.rows),
                                       .kv_heads = static_cast<int64_t>(s.heads),
                                       .head_dim = static_cast<int64_t>(s.head_dim),
                                       .block_stride_bytes = static_cast<int64_t>(stride),
                                       .kv_dtype = s.dtype},
                                      ctx);
  EXPECT_TRUE(status.ok()) << status;
  return arena;
}

class KvWriteTest : public KernelTest {};

// One token, two heads of size 2, worked by hand: [K|V][head][slot][dim].
TEST_P(KvWriteTest, PutsEachValueWhereTheLayoutSays) {
  const std::vector<float> k = {1, 2, 3, 4};
  const std::vector<float> v = {5, 6, 7, 8};
  const KvSlot slot{.block = 1, .offset = 3};
  std::vector<float> arena(2 * 128, -1.0f);
  ASSERT_TRUE(KvWrite({.k = k.data(),
                       .v = v.data(),
                       .slots = &slot,
                       .kv = reinterpret_cast<std::byte*>(arena.data()),
                       .rows = 1,
                       .kv_heads = 2,
                       .head_dim = 2,
                       .block_stride_bytes = 128 * 4,
                       .kv_dtype = DType::kF32},
                      GetParam())
                  .ok());
  std::vector<float> want(2 * 128, -1.0f);
  for (size_t i = 0; i < 4; ++i) want[128 + i * 32 + 3 * 2] = static_cast<float>(2 * i + 1);
  for (size_t i = 0; i < 4; ++i) want[128 + i * 32 + 3 * 2 + 1] = static_cast<float>(2 * i + 2);
  EXPECT_EQ(arena, want);
}

TEST_P(KvWriteTest, EqualsTheReferenceBitForBitAndTouchesNothingElse) {
  ThreadTeam team(3);
  ExecContext threaded = GetParam();
  threaded.team = &team;
  for (DType dtype : {DType::kF32, DType::kBf16}) {
    for (size_t head_dim : {1u, 15u, 16u, 17u, 64u}) {
      for (size_t rows : {1u, 17u, 80u}) {
        const Shape shape{rows, 3, head_dim, dtype};
        ASSERT_EQ(Write(shape, GetParam()), Write(shape, Reference()));
        ASSERT_EQ(Write(shape, threaded), Write(shape, Reference()));
      }
    }
  }
}

// One token of four elements between gaps, worked by hand: [slot][element].
TEST_P(KvWriteTest, PutsEachLatentWhereTheLayoutSays) {
  const std::vector<float> x = {1, 2, 3, 4, -7, 5, 6, 7, 8};
  const KvSlot slots[] = {{.block = 1, .offset = 3}, {.block = 0, .offset = 15}};
  std::vector<float> arena(2 * 64, -1.0f);
  ASSERT_TRUE(LatentWrite({.x = x.data(),
                           .slots = slots,
                           .kv = reinterpret_cast<std::byte*>(arena.data()),
                           .rows = 2,
                           .width = 4,
                           .x_stride = 5,
                           .block_stride_bytes = 64 * 4,
                           .kv_dtype = DType::kF32},
                          GetParam())
                  .ok());
  std::vector<float> want(2 * 64, -1.0f);
  for (size_t i = 0; i < 4; ++i) want[64 + 3 * 4 + i] = x[i];
  for (size_t i = 0; i < 4; ++i) want[15 * 4 + i] = x[5 + i];
  EXPECT_EQ(arena, want);
}

TEST_P(KvWriteTest, LatentsEqualTheReferenceBitForBitAndTouchNothingElse) {
  ThreadTeam team(3);
  ExecContext threaded = GetParam();
  threaded.team = &team;
  for (DType dtype : {DType::kF32, DType::kBf16}) {
    for (size_t width : {1u, 13u, 16u, 576u}) {
      for (size_t rows : {1u, 17u, 80u}) {
        const auto x = RandomNormal(rows * (width + 3), 7);
        std::vector<KvSlot> slots;
        for (size_t r = 0; r < rows; ++r) {
          slots.push_back(
              {.block = static_cast<int32_t>(4 - r / 16), .offset = static_cast<int32_t>(r % 16)});
        }
        const size_t stride = 16 * width * SizeOf(dtype) + 64;
        auto write = [&](const ExecContext& ctx) {
          std::vector<std::byte> arena(5 * stride, kUntouched);
          const absl::Status status =
              LatentWrite({.x = x.data(),
                           .slots = slots.data(),
                           .kv = arena.data(),
                           .rows = static_cast<int64_t>(rows),
                           .width = static_cast<int64_t>(width),
                           .x_stride = static_cast<int64_t>(width + 3),
                           .block_stride_bytes = static_cast<int64_t>(stride),
                           .kv_dtype = dtype},
                          ctx);
          EXPECT_TRUE(status.ok()) << status;
          return arena;
        };
        ASSERT_EQ(write(GetParam()), write(Reference()));
        ASSERT_EQ(write(threaded), write(Reference()));
      }
    }
  }
}

TEST_P(KvWriteTest, RefusesSlotsOutsideABlock) {
  if (!SeesContents()) GTEST_SKIP() << "slots are on the device";
  float x = 0;
  std::byte kv[4 * 32];
  KvSlot slot{.block = 0, .offset = 16};
  const KvWriteArgs args{.k = &x,
                         .v = &x,
                         .slots = &slot,
                         .kv = kv,
                         .rows = 1,
                         .kv_heads = 1,
                         .head_dim = 1,
                         .block_stride_bytes = 64};
  EXPECT_EQ(KvWrite(args, GetParam()).code(), absl::StatusCode::kInvalidArgument);
  slot = {.block = -1, .offset = 0};
  EXPECT_EQ(KvWrite(args, GetParam()).code(), absl::StatusCode::kInvalidArgument);
  LatentWriteArgs latents{.x = &x,
                          .slots = &slot,
                          .kv = kv,
                          .rows = 1,
                          .width = 1,
                          .x_stride = 1,
                          .block_stride_bytes = 64};
  EXPECT_EQ(LatentWrite(latents, GetParam()).code(), absl::StatusCode::kInvalidArgument);
  slot = {.block = 0, .offset = 0};
  EXPECT_TRUE(LatentWrite(latents, GetParam()).ok());
  latents.width = 0;
  EXPECT_EQ(LatentWrite(latents, GetParam()).code(), absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Contexts, KvWriteTest, ::testing::ValuesIn(AllContextsAndCuda()),
                         ContextParamName);

}  // namespace
}  // namespace lynx::kernels
