#include "common/base/huge_buffer.h"

#include <cstdint>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace lynx {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(HugeBufferTest, IsZeroedAlignedAndWritable) {
  for (size_t bytes : {size_t{1}, size_t{4096}, HugeBuffer::kAlignment, (size_t{5} << 20) + 3}) {
    auto buffer = HugeBuffer::Create(bytes, "a test");
    ASSERT_THAT(buffer, IsOk());
    EXPECT_EQ(buffer->size(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % HugeBuffer::kAlignment, 0u);
    for (size_t i = 0; i < bytes; i += 1021) ASSERT_EQ(buffer->data()[i], std::byte{0}) << i;
    buffer->data()[0] = std::byte{1};
    buffer->data()[bytes - 1] = std::byte{2};
  }
}

TEST(HugeBufferTest, MovesAndIsEmptyAfterwards) {
  HugeBuffer a = *HugeBuffer::Create(100, "a");
  std::byte* const data = a.data();
  data[99] = std::byte{7};
  HugeBuffer b = std::move(a);
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(a.data(), nullptr);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(a.size(), 0u);
  HugeBuffer c = *HugeBuffer::Create(200, "c");
  c = std::move(b);
  EXPECT_EQ(c.data()[99], std::byte{7});
  EXPECT_EQ(b.data(), nullptr);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(HugeBuffer().HugePageBytes(), 0);
  EXPECT_EQ(HugeBuffer::Create(0, "nothing")->data(), nullptr);
}

TEST(HugeBufferTest, WhatCannotBeMappedIsRefusedInWords) {
  for (size_t bytes : {size_t{1} << 56, std::numeric_limits<size_t>::max()}) {
    EXPECT_THAT(
        HugeBuffer::Create(bytes, "packed weights"),
        StatusIs(absl::StatusCode::kResourceExhausted,
                 AllOf(HasSubstr("packed weights"), HasSubstr(std::to_string(bytes) + " bytes"))));
  }
}

TEST(HugeBufferDeathTest, RunningOverEitherEndStops) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  HugeBuffer buffer = *HugeBuffer::Create(HugeBuffer::kAlignment, "a test");
  volatile std::byte* const data = buffer.data();
  EXPECT_DEATH(data[HugeBuffer::kAlignment] = std::byte{1}, "");
  EXPECT_DEATH(data[-1] = std::byte{1}, "");
}

// Where the system gives huge pages on request, touched memory lies in them.
TEST(HugeBufferTest, TellsHowMuchLiesInHugePages) {
  std::ifstream in("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string modes;
  std::getline(in, modes);
  constexpr size_t kBytes = 8 * HugeBuffer::kAlignment;
  HugeBuffer buffer = *HugeBuffer::Create(kBytes, "a test");
  EXPECT_EQ(buffer.HugePageBytes(), 0);
  for (size_t i = 0; i < kBytes; i += 4096) buffer.data()[i] = std::byte{1};
  EXPECT_LE(buffer.HugePageBytes(), static_cast<int64_t>(kBytes));
  if (modes.empty() || modes.find("[never]") != std::string::npos) GTEST_SKIP() << modes;
  // Memory may be too fragmented for all of them.
  EXPECT_GT(buffer.HugePageBytes(), 0);
}

}  // namespace
}  // namespace lynx
