#include "kernels/sampling/philox.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx::kernels {
namespace {

using ::testing::ElementsAre;

// The known answers published with the Random123 library.
TEST(PhiloxTest, GivesThePublishedKnownAnswers) {
  EXPECT_THAT(Philox4x32({0, 0, 0, 0}, {0, 0}),
              ElementsAre(0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_THAT(Philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
              ElementsAre(0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu));
  EXPECT_THAT(
      Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      ElementsAre(0xd16cfe09u, 0x94fdcceb, 0x5001e420u, 0x24126ea1u));
}

TEST(PhiloxTest, UniformDoubleStaysBelowOne) {
  EXPECT_EQ(UniformDouble(0, 0), 0.0);
  EXPECT_EQ(UniformDouble(0x80000000, 0), 0.5);
  EXPECT_LT(UniformDouble(0xffffffff, 0xffffffff), 1.0);
}

}  // namespace
}  // namespace lynx::kernels
