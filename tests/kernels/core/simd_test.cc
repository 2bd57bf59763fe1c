#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/core/float_convert.h"
#include "tests/kernels/core/simd_probe.h"
#include "tests/support/kernel_test.h"

namespace lynx::kernels {
namespace {

using ::lynx::testing::AllContexts;
using ::lynx::testing::BitsOf;
using ::lynx::testing::ContextParamName;
using ::lynx::testing::kCanary;
using ::lynx::testing::KernelTest;
using ::lynx::testing::RandomNormal;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class SimdTest : public KernelTest {
 protected:
  void SetUp() override {
    KernelTest::SetUp();
    if (IsReference()) GTEST_SKIP() << "the reference uses no simd.h";
  }
  Isa isa() const { return GetParam().isa; }
};

std::vector<float> EveryScale() {
  std::vector<float> values = {0.0f,   -0.0f, 1.0f,      -1.0f,    87.0f,
                               -87.2f, 88.2f, 0x1p-126f, 0x1p-140f};
  for (float base : RandomNormal(4087, /*seed=*/3)) values.push_back(base * 25.0f);
  return values;
}

TEST_P(SimdTest, ExpIsWithinTwoUlp) {
  std::vector<float> x;
  for (float v : EveryScale()) x.push_back(std::min(88.2f, std::max(-87.2f, v)));
  std::vector<float> y(x.size());
  internal::ProbeExpFor(isa())(x.data(), y.data(), static_cast<int64_t>(x.size()));
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = std::exp(static_cast<double>(x[i]));
    ASSERT_NEAR(y[i], want, want * 2.4e-7) << "at " << x[i];
  }
}

TEST_P(SimdTest, ExpAtTheEdges) {
  std::vector<float> x(16, 0.0f);
  x[0] = -kInf;
  x[1] = kInf;
  x[2] = kNan;
  x[3] = -100.0f;
  x[4] = 100.0f;
  std::vector<float> y(16);
  internal::ProbeExpFor(isa())(x.data(), y.data(), 16);
  EXPECT_EQ(y[0], 0.0f);
  EXPECT_EQ(y[1], kInf);
  EXPECT_TRUE(std::isnan(y[2]));
  EXPECT_EQ(y[3], 0.0f);
  EXPECT_EQ(y[4], kInf);
  EXPECT_EQ(y[5], 1.0f);
}

TEST_P(SimdTest, SiluIsAccurateAndKeepsNan) {
  std::vector<float> x = EveryScale();
  x[0] = kNan;
  std::vector<float> y(x.size());
  internal::ProbeSiluFor(isa())(x.data(), y.data(), static_cast<int64_t>(x.size()));
  EXPECT_TRUE(std::isnan(y[0]));
  for (size_t i = 1; i < x.size(); ++i) {
    const double want = x[i] / (1 + std::exp(-static_cast<double>(x[i])));
    // Below -87 the exponential saturates; the value is 0 to within 1e-36 either way.
    ASSERT_NEAR(y[i], want, std::abs(want) * 6e-7 + 1e-35) << "at " << x[i];
  }
}

TEST_P(SimdTest, SixteenBitLoadsAgreeWithScalarForEveryPattern) {
  std::vector<uint16_t> x(1 << 16);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<uint16_t>(i);
  std::vector<float> half(x.size());
  std::vector<float> brain(x.size());
  internal::ProbeLoadF16For(isa())(x.data(), half.data(), 1 << 16);
  internal::ProbeLoadBf16For(isa())(x.data(), brain.data(), 1 << 16);
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(half[i]), std::bit_cast<uint32_t>(F16ToF32(x[i]))) << i;
    ASSERT_EQ(std::bit_cast<uint32_t>(brain[i]), std::bit_cast<uint32_t>(Bf16ToF32(x[i]))) << i;
  }
}

TEST_P(SimdTest, RoundingToBf16AgreesWithScalar) {
  std::vector<float> x = RandomNormal(4096, /*seed=*/5);
  const uint32_t special[] = {0x7f800000, 0xff800000, 0x7fffffff, 0xffffffff, 0x7f800001,
                              0x3f808000, 0x3f818000, 0x7f7fffff, 0x00000001, 0x80000000};
  for (size_t i = 0; i < std::size(special); ++i) x[i] = std::bit_cast<float>(special[i]);
  std::vector<float> rounded(x.size());
  std::vector<uint16_t> stored(x.size());
  internal::ProbeRoundBf16For(isa())(x.data(), rounded.data(), static_cast<int64_t>(x.size()));
  internal::ProbeStoreBf16For(isa())(x.data(), stored.data(), static_cast<int64_t>(x.size()));
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(rounded[i]), std::bit_cast<uint32_t>(RoundToBf16(x[i]))) << i;
    ASSERT_EQ(stored[i], F32ToBf16(x[i])) << i;
  }
}

TEST_P(SimdTest, ReductionsKeepOneOrder) {
  const std::vector<float> x = RandomNormal(64, /*seed=*/7);
  float four[4];
  internal::ProbeReduceAdd4For(isa())(x.data(), four);
  for (size_t i = 0; i < 4; ++i) {
    std::vector<float> folded(x.begin() + static_cast<std::ptrdiff_t>(16 * i),
                              x.begin() + static_cast<std::ptrdiff_t>(16 * i + 16));
    float largest = folded[0];
    for (float v : folded) largest = std::max(largest, v);
    for (size_t half = 8; half > 0; half /= 2) {
      for (size_t j = 0; j < half; ++j) folded[j] += folded[j + half];
    }
    EXPECT_EQ(internal::ProbeReduceAddFor(isa())(x.data() + 16 * i), folded[0]);
    EXPECT_EQ(four[i], folded[0]);
    EXPECT_EQ(internal::ProbeReduceMaxFor(isa())(x.data() + 16 * i), largest);
  }
}

TEST_P(SimdTest, PartialCopiesTouchNothingElse) {
  const std::vector<float> x = RandomNormal(16, /*seed=*/9);
  for (int64_t n = 1; n < 16; ++n) {
    std::vector<float> exact(x.begin(), x.begin() + n);  // ASan sees a read beyond it.
    std::vector<float> y(16, kCanary);
    internal::ProbePartialCopyFor(isa())(exact.data(), y.data(), n);
    for (int64_t i = 0; i < 16; ++i) {
      EXPECT_EQ(y[static_cast<size_t>(i)], i < n ? x[static_cast<size_t>(i)] : kCanary);
    }
  }
}

// Both fuse the same products in the same order, so a fleet may mix them.
TEST(SimdClassTest, Avx2AndAvx512AgreeBitForBit) {
  if (BestIsa() < Isa::kAvx512) GTEST_SKIP() << "no AVX-512 here";
  const std::vector<float> x = EveryScale();
  const auto n = static_cast<int64_t>(x.size());
  std::vector<float> a(x.size());
  std::vector<float> b(x.size());
  internal::ProbeSiluFor(Isa::kAvx2)(x.data(), a.data(), n);
  internal::ProbeSiluFor(Isa::kAvx512)(x.data(), b.data(), n);
  EXPECT_EQ(BitsOf(a), BitsOf(b));
}

INSTANTIATE_TEST_SUITE_P(Contexts, SimdTest, ::testing::ValuesIn(AllContexts()), ContextParamName);

}  // namespace
}  // namespace lynx::kernels
