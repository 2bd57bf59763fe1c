#include "kernels/kv/kv_copy.h"

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

// Memory at a multiple of 16 bytes, that tells each 2 bytes from all others.
class Bytes {
 public:
  Bytes(size_t size, uint16_t first) : size_(size), lines_((size + 15) / 16) {
    for (size_t i = 0; i + 1 < size; i += 2) {
      const auto value = static_cast<uint16_t>(first + i / 2);
      std::memcpy(data() + i, &value, 2);
    }
  }
  std::byte* data() { return lines_.front().bytes; }
  std::vector<std::byte> copy() { return {data(), data() + size_}; }

 private:
  struct alignas(16) Line {
    std::byte bytes[16];
  };
  size_t size_;
  std::vector<Line> lines_;
};

constexpr int64_t kStride = 20480;
constexpr int32_t kBlocks[] = {5, 0, 3};
constexpr size_t kArena = 6 * kStride;

class KvCopyTest : public KernelTest {
 protected:
  // Of a piece and, if `second` is not 0, another of so many bytes.
  KvCopyArgs Args(int64_t second) const {
    KvCopyArgs args{.blocks = kBlocks,
                    .block_count = 3,
                    .block_stride_bytes = kStride,
                    .pieces = {{.offset = 64, .bytes = 48}, {.offset = 3008, .bytes = second}},
                    .piece_count = second == 0 ? 1 : 2};
    return args;
  }
};

TEST_P(KvCopyTest, GathersAndScattersThePiecesOfTheNamedBlocksAndNothingElse) {
  ThreadTeam team(3);
  ExecContext threaded = GetParam();
  threaded.team = &team;
  for (const int64_t second : {0, 16, 17008, 17472}) {
    KvCopyArgs args = Args(second);
    const auto packed_bytes = static_cast<size_t>(args.PackedBlockBytes());
    ASSERT_EQ(packed_bytes, static_cast<size_t>(48 + second));
    Bytes kv(kArena, 0), packed(3 * packed_bytes + 16, 40000);
    const std::vector<std::byte> kv_before = kv.copy();
    std::vector<std::byte> want = packed.copy();
    args.kv = kv.data();
    args.packed = packed.data();
    ASSERT_TRUE(KvGather(args, threaded).ok());
    for (size_t b = 0; b < 3; ++b) {
      const std::byte* const from = kv_before.data() + kBlocks[b] * kStride;
      std::byte* const to = want.data() + b * packed_bytes;
      std::memcpy(to, from + 64, 48);
      std::memcpy(to + 48, from + 3008, static_cast<size_t>(second));
    }
    ASSERT_EQ(packed.copy(), want);
    ASSERT_EQ(kv.copy(), kv_before);

    Bytes other(kArena, 7);
    std::vector<std::byte> want_kv = other.copy();
    args.kv = other.data();
    ASSERT_TRUE(KvScatter(args, threaded).ok());
    for (const int32_t block : kBlocks) {
      const int64_t at = block * kStride;
      std::memcpy(want_kv.data() + at + 64, kv_before.data() + at + 64, 48);
      std::memcpy(want_kv.data() + at + 3008, kv_before.data() + at + 3008,
                  static_cast<size_t>(second));
    }
    ASSERT_EQ(other.copy(), want_kv);
    ASSERT_EQ(packed.copy(), want);
  }
}

TEST_P(KvCopyTest, RefusesWhatItCannotRunAndNoBlocksAreFine) {
  Bytes kv(kArena, 0), packed(512, 0);
  const auto code = [&](const auto& change) {
    KvCopyArgs args = Args(16);
    args.kv = kv.data();
    args.packed = packed.data();
    change(args);
    const absl::Status gathered = KvGather(args, GetParam());
    EXPECT_EQ(gathered.code(), KvScatter(args, GetParam()).code());
    return gathered.code();
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code([](KvCopyArgs&) {}), absl::StatusCode::kOk);
  EXPECT_EQ(code([](KvCopyArgs& args) {
              args.block_count = 0;
              args.blocks = nullptr;
            }),
            absl::StatusCode::kOk);
  EXPECT_EQ(code([](KvCopyArgs& args) { args.block_count = -1; }), kInvalid);
  EXPECT_EQ(code([](KvCopyArgs& args) { args.piece_count = 0; }), kInvalid);
  EXPECT_EQ(code([](KvCopyArgs& args) { args.piece_count = 3; }), kInvalid);
  EXPECT_EQ(code([](KvCopyArgs& args) { args.kv += 8; }), kInvalid);
  EXPECT_EQ(code([](KvCopyArgs& args) { args.packed += 8; }), kInvalid);
  EXPECT_EQ(code([](KvCopyArgs& args) { args.block_stride_bytes += 8; }), kInvalid);
  EXPECT_EQ(code([](KvCopyArgs& args) { args.block_stride_bytes = int64_t{1} << 31; }), kInvalid);
  EXPECT_EQ(code([](KvCopyArgs& args) { args.pieces[1].offset = -16; }), kInvalid);
  EXPECT_EQ(code([](KvCopyArgs& args) { args.pieces[1].offset = 8; }), kInvalid);
  EXPECT_EQ(code([](KvCopyArgs& args) { args.pieces[1].offset = kStride; }), kInvalid);
  EXPECT_EQ(code([](KvCopyArgs& args) { args.pieces[0].bytes = 0; }), kInvalid);
  EXPECT_EQ(code([](KvCopyArgs& args) { args.pieces[0].bytes = 24; }), kInvalid);
  const int32_t nowhere = -1;
  if (SeesContents()) {
    EXPECT_EQ(code([&](KvCopyArgs& args) {
                args.blocks = &nowhere;
                args.block_count = 1;
              }),
              kInvalid);
  }
}

INSTANTIATE_TEST_SUITE_P(Contexts, KvCopyTest, ::testing::ValuesIn(AllContextsAndCuda()),
                         ContextParamName);

}  // namespace
}  // namespace lynx::kernels
