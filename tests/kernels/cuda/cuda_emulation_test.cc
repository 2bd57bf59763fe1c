// The emulator itself: that it computes what CUDA would, and finds the faults that it is there for.
#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/core/float_convert.h"
#include "tests/kernels/cuda/planted_kernels.h"
#include "tests/support/cuda_emulation/emulator.h"

namespace lynx::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CudaEmulationTest : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "fibers do not go with ThreadSanitizer";
#endif
    cuda_emulation::SetOptions({.quiet = true});
  }
  void TearDown() override { cuda_emulation::SetOptions({}); }
};

struct alignas(16) Values {
  float of[256];
  Values() { std::iota(of, of + 256, 0.0f); }
};

float Sum(Planted fault, uint64_t order = 0) {
  cuda_emulation::SetOptions({.order = order, .quiet = true});
  const Values values;
  float sum[2] = {-1, -1};
  RunPlanted(fault, values.of, 256, sum);
  return sum[0];
}

// The faults of a run in some order.
std::vector<std::string> FaultsOf(Planted fault, uint64_t order) {
  cuda_emulation::SetOptions({.order = order, .quiet = true});
  const Values values;
  float sum[2];
  const int error = RunPlanted(fault, values.of, 256, sum);
  if (error == 0) return {};
  EXPECT_EQ(error, 719);
  return cuda_emulation::Faults();
}

constexpr uint64_t kOrders[] = {0, 1, 2, 3, 4};

TEST_F(CudaEmulationTest, ACorrectKernelGivesItsResultInAnyOrder) {
  for (uint64_t order : kOrders) {
    EXPECT_EQ(Sum(Planted::kNothing, order), 255 * 256 / 2) << order;
    EXPECT_THAT(FaultsOf(Planted::kNothing, order), IsEmpty());
  }
}

// In every order: the check does not depend on a wrong result.
TEST_F(CudaEmulationTest, FindsRacesInSharedMemory) {
  if (!cuda_emulation::RaceCheckWorks()) GTEST_SKIP() << "accesses are a sanitizer's";
  for (uint64_t order : kOrders) {
    for (Planted fault :
         {Planted::kMissingBarrier, Planted::kMissingSecond, Planted::kMissingWarpSync}) {
      EXPECT_THAT(FaultsOf(fault, order), Contains(HasSubstr("race")))
          << static_cast<int>(fault) << " in order " << order;
    }
    EXPECT_THAT(FaultsOf(Planted::kUnwritten, order), Contains(HasSubstr("nobody wrote")));
    EXPECT_THAT(FaultsOf(Planted::kOutside, order), Contains(HasSubstr("outside")));
    EXPECT_THAT(FaultsOf(Planted::kMissingWait, order), Contains(HasSubstr("before the wait")));
  }
}

TEST_F(CudaEmulationTest, FindsThreadsThatDoNotMeet) {
  for (uint64_t order : kOrders) {
    EXPECT_THAT(FaultsOf(Planted::kDivergentBarrier, order),
                Contains(HasSubstr("divergent barrier")));
    EXPECT_THAT(FaultsOf(Planted::kEarlyExit, order), Contains(HasSubstr("have left")));
    EXPECT_FALSE(FaultsOf(Planted::kDivergentShuffle, order).empty());
    EXPECT_THAT(FaultsOf(Planted::kEndlessWait, order), Contains(HasSubstr("does not come")));
  }
}

TEST_F(CudaEmulationTest, AFaultDoesNotOutliveItsLaunch) {
  EXPECT_FALSE(FaultsOf(Planted::kDivergentBarrier, 0).empty());
  EXPECT_EQ(Sum(Planted::kNothing), 255 * 256 / 2);
  EXPECT_THAT(FaultsOf(Planted::kNothing, 0), IsEmpty());
}

TEST_F(CudaEmulationTest, WarpOperationsAreThoseOfCuda) {
  for (uint64_t order : kOrders) {
    cuda_emulation::SetOptions({.order = order, .quiet = true});
    std::vector<unsigned> values(32);
    for (unsigned i = 0; i < 32; ++i) values[i] = (i * 7 + 5) % 32;
    unsigned ballot = 0, sum = 0;
    for (unsigned i = 0; i < 32; ++i) {
      ballot |= (values[i] % 3 == 0 ? 1u : 0u) << i;
      sum += values[i];
    }
    WarpResults results;
    ASSERT_EQ(RunWarpOperations(values.data(), &results), 0);
    for (unsigned i = 0; i < 32; ++i) {
      EXPECT_EQ(results.shuffled[i], values[31 - i]);
      EXPECT_EQ(results.crossed[i], values[i ^ 4]);
      EXPECT_EQ(results.down[i], values[i + 3 < 32 ? i + 3 : i]);
      EXPECT_EQ(results.ballot[i], ballot);
      EXPECT_EQ(results.most[i], 31u);
      EXPECT_EQ(results.least[i], 0u);
      EXPECT_EQ(results.added[i], sum);
    }
  }
}

TEST_F(CudaEmulationTest, AnMmaMultipliesMatrices) {
  std::vector<float> a(16 * 16), b(16 * 8), c(16 * 8);
  for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i % 13) - 5;
  for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i % 7) - 3;
  ASSERT_EQ(RunMma(a.data(), b.data(), c.data()), 0);
  for (size_t row = 0; row < 16; ++row) {
    for (size_t column = 0; column < 8; ++column) {
      float want = 0;
      for (size_t k = 0; k < 16; ++k) want += a[row * 16 + k] * b[k * 8 + column];
      EXPECT_EQ(c[row * 8 + column], want) << row << ", " << column;
    }
  }
}

TEST_F(CudaEmulationTest, BlocksTakeTurnsAndFindWhoIsLast) {
  for (uint64_t order : kOrders) {
    for (int resident : {1, 3}) {
      cuda_emulation::SetOptions({.order = order, .resident_blocks = resident, .quiet = true});
      unsigned counter = 0, result = 0;
      ASSERT_EQ(RunLastBlock(7, &counter, &result), 0);
      EXPECT_EQ(result, 7u);
    }
  }
}

}  // namespace
}  // namespace lynx::testing
