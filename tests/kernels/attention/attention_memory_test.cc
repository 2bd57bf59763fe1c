// What attention allocates, so these tests have a program of their own.
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/attention/latent_attention.h"
#include "kernels/attention/paged_attention.h"
#include "tests/kernels/attention/attention_rows.h"

namespace {

std::atomic<int64_t> allocations = 0;

}  // namespace

void* operator new(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  ++allocations;
  const auto align = static_cast<size_t>(alignment);
  if (void* memory = std::aligned_alloc(align, (bytes + align - 1) / align * align)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace lynx::kernels {
namespace {

constexpr int32_t kThreads = 3;
constexpr int64_t kHeads = 16;
constexpr int64_t kDim = 64;

class AttentionMemoryTest : public ::testing::Test {
 protected:
  // Runs one row and then several, at a long context; returns what they allocate once a call of
  // each kind has been made.
  template <typename Call>
  int64_t AllocationsOf(const Call& call) {
    for (int64_t rows : {1, 4}) call(rows);
    const int64_t before = allocations;
    for (int64_t rows : {1, 4}) call(rows);
    return allocations - before;
  }

  const std::vector<std::byte> kv_ = std::vector<std::byte>(kBlocks * 16 * 2 * kHeads * kDim * 4);
  const std::vector<float> q_ = std::vector<float>(4 * kHeads * kDim);
  std::vector<float> y_ = std::vector<float>(4 * kHeads * kDim);
  const std::vector<int32_t> blocks_[4] = {LongBlocks(1), LongBlocks(2), LongBlocks(3),
                                           LongBlocks(4)};
  const std::vector<AttentionRow> rows_ = {{blocks_[0].data(), kLongPosition},
                                           {blocks_[1].data(), kLongPosition},
                                           {blocks_[2].data(), kLongPosition},
                                           {blocks_[3].data(), kLongPosition}};
  ThreadTeam team_{kThreads};
  const ExecContext ctx_{.team = &team_};
  AttentionWorkspace workspace_{AttentionWorkspace::BytesFor(kThreads)};
};

TEST_F(AttentionMemoryTest, LongContextsAllocateNothing) {
  EXPECT_EQ(AllocationsOf([&](int64_t rows) {
              ASSERT_TRUE(PagedAttention({.q = q_.data(),
                                          .rows = rows_.data(),
                                          .kv = kv_.data(),
                                          .y = y_.data(),
                                          .row_count = rows,
                                          .heads = kHeads,
                                          .kv_heads = kHeads,
                                          .head_dim = kDim,
                                          .q_stride = kHeads * kDim,
                                          .y_stride = kHeads * kDim,
                                          .block_stride_bytes = 16 * 2 * kHeads * kDim * 4,
                                          .kv_dtype = DType::kF32},
                                         workspace_, ctx_)
                              .ok());
            }),
            0);
}

TEST_F(AttentionMemoryTest, LongContextsOfLatentsAllocateNothing) {
  EXPECT_EQ(AllocationsOf([&](int64_t rows) {
              ASSERT_TRUE(LatentAttention({.q = q_.data(),
                                           .rows = rows_.data(),
                                           .kv = kv_.data(),
                                           .y = y_.data(),
                                           .row_count = rows,
                                           .heads = kHeads,
                                           .latent_dim = kDim / 2,
                                           .rope_dim = kDim / 2,
                                           .q_stride = kHeads * kDim,
                                           .y_head_stride = kDim / 2,
                                           .y_stride = kHeads * kDim / 2,
                                           .block_stride_bytes = 16 * kDim * 4,
                                           .kv_dtype = DType::kF32},
                                          workspace_, ctx_)
                              .ok());
            }),
            0);
}

}  // namespace
}  // namespace lynx::kernels
