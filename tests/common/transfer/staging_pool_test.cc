#include "common/transfer/staging_pool.h"

#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace lynx::transfer {
namespace {

TEST(StagingPoolTest, AccountsBoundWhatTheirPartsHold) {
  StagingPool pool(10000);
  const auto connection = pool.Open(6000);
  const auto first = connection->OpenPart();
  const auto second = connection->OpenPart();
  auto landing = first->Acquire(4000);
  ASSERT_NE(landing, nullptr);
  EXPECT_EQ(second->Acquire(3000), nullptr);
  EXPECT_NE(second->Acquire(2000), nullptr);
  EXPECT_EQ(connection->used_bytes(), 4000u);
  landing.reset();
  EXPECT_EQ(pool.used_bytes(), 0u);
}

// What is abandoned counts once and until its landing dies, in whatever order a hand-off and its
// connection are given up.
TEST(StagingPoolTest, QuarantineCountsEachLandingOnce) {
  for (const bool part_first : {false, true}) {
    SCOPED_TRACE(part_first);
    StagingPool pool(1 << 20);
    const auto connection = pool.Open(1 << 20);
    const auto part = connection->OpenPart();
    const auto other = connection->OpenPart();
    auto of_part = part->Acquire(3000);
    auto of_other = other->Acquire(500);
    auto of_connection = connection->Acquire(20);
    if (part_first) {
      part->Abandon();
      EXPECT_EQ(pool.quarantined_bytes(), 3000u);
      connection->Abandon();
    } else {
      connection->Abandon();
      EXPECT_EQ(pool.quarantined_bytes(), 3520u);
      part->Abandon();
    }
    EXPECT_EQ(pool.quarantined_bytes(), 3520u);
    auto late = part->Acquire(100);
    EXPECT_EQ(pool.quarantined_bytes(), 3620u);
    other->Abandon();
    of_part.reset();
    EXPECT_EQ(pool.quarantined_bytes(), 620u);
    late.reset();
    of_other.reset();
    of_connection.reset();
    EXPECT_EQ(pool.quarantined_bytes(), 0u);
    EXPECT_EQ(pool.used_bytes(), 0u);
  }
}

}  // namespace
}  // namespace lynx::transfer
