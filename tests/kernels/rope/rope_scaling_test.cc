#include "kernels/rope/rope_scaling.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/rope/rope_table.h"

namespace lynx::kernels {
namespace {

using ::testing::HasSubstr;

struct Case {
  const char* name;
  int64_t rotary_dim;
  double theta;
  RopeScaling scaling;
  std::vector<float> inverse;
  float attention_factor;
};

// What ROPE_INIT_FUNCTIONS of Hugging Face transformers 5.24 return, which compute in float32.
const std::vector<Case>& Cases() {
  using enum RopeScalingKind;
  static const std::vector<Case> cases = {
      {"linear",
       8,
       10000,
       {.kind = kLinear, .factor = 4},
       {0.25f, 0.0250000004f, 0.00249999994f, 0.000250000012f},
       1},
      {"llama3",
       32,
       500000,
       {.kind = kLlama3,
        .factor = 8,
        .original_positions = 8192,
        .low_freq_factor = 1,
        .high_freq_factor = 4},
       {1, 0.440366626f, 0.193922758f, 0.0853971019f, 0.0376060307f, 0.0165604409f, 0.00729266508f,
        0.00321144611f, 0.000524846022f, 7.78465546e-05f, 3.42810235e-05f, 1.50962178e-05f,
        6.64786967e-06f, 2.92749974e-06f, 1.28917316e-06f, 5.6770881e-07f},
       1},
      {"llama3 without a band",
       32,
       500000,
       {.kind = kLlama3,
        .factor = 16,
        .original_positions = 8192,
        .low_freq_factor = 1,
        .high_freq_factor = 1},
       {1, 0.440366626f, 0.193922758f, 0.0853971019f, 0.0376060307f, 0.0165604409f, 0.00729266508f,
        0.00321144611f, 0.00141421345f, 3.89232773e-05f, 1.71405118e-05f, 7.5481089e-06f,
        3.32393483e-06f, 1.46374987e-06f, 6.44586578e-07f, 2.83854405e-07f},
       1},
      {"yarn of DeepSeek-V2-Lite",
       64,
       10000,
       {.kind = kYarn,
        .factor = 40,
        .original_positions = 4096,
        .mscale = 0.707,
        .mscale_all_dim = 0.707},
       {1,
        0.749894202f,
        0.562341332f,
        0.421696514f,
        0.316227764f,
        0.237137362f,
        0.177827939f,
        0.133352146f,
        0.100000001f,
        0.0749894157f,
        0.0562341288f,
        0.0390069261f,
        0.0268793609f,
        0.0183781441f,
        0.012447956f,
        0.0083345091f,
        0.00550000044f,
        0.00356199732f,
        0.00224936521f,
        0.00137051346f,
        0.000790569407f,
        0.000414990413f,
        0.00017782794f,
        3.3338034e-05f,
        2.49999994e-05f,
        1.87473543e-05f,
        1.40585325e-05f,
        1.05424124e-05f,
        7.90569447e-06f,
        5.92843435e-06f,
        4.44569832e-06f,
        3.33380353e-06f},
       1},
      {"yarn with two mscales",
       16,
       10000,
       {.kind = kYarn,
        .factor = 40,
        .original_positions = 4096,
        .mscale = 1,
        .mscale_all_dim = 0.5},
       {1, 0.316227764f, 0.100000001f, 0.0239147246f, 0.00512499968f, 0.000849862176f,
        2.49999994e-05f, 7.90569447e-06f},
       1.15572199f},
      {"yarn of gpt-oss",
       32,
       150000,
       {.kind = kYarn, .factor = 32, .original_positions = 4096, .truncate = false},
       {1, 0.47478205f, 0.225418001f, 0.107024416f, 0.0508132726f, 0.0193350017f, 0.00679495931f,
        0.00209379266f, 0.000456483918f, 3.83088118e-05f, 1.8188337e-05f, 8.63549576e-06f,
        4.09997847e-06f, 1.94659629e-06f, 9.24208962e-07f, 4.38797855e-07f},
       1.34657359f},
      {"yarn with a ramp of no width",
       8,
       10000,
       {.kind = kYarn,
        .factor = 4,
        .original_positions = 4096,
        .beta_fast = 1,
        .beta_slow = 1,
        .attention_factor = 1.5,
        .truncate = false},
       {1, 0.100000001f, 0.00999999978f, 0.000250000012f},
       1.5f},
  };
  return cases;
}

TEST(RopeScalingTest, AgreesWithTransformers) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    const RopeFrequencies got = MakeRopeFrequencies(c.rotary_dim, c.theta, c.scaling);
    EXPECT_FLOAT_EQ(got.attention_factor, c.attention_factor);
    ASSERT_EQ(got.inverse.size(), c.inverse.size());
    for (size_t j = 0; j < c.inverse.size(); ++j) {
      // A few roundings of theirs; where two terms nearly cancel none is lost.
      EXPECT_NEAR(got.inverse[j], c.inverse[j], 2e-6 * c.inverse[j]) << j;
    }
  }
}

TEST(RopeScalingTest, UnscaledFrequenciesArePowersOfTheta) {
  const RopeFrequencies got = MakeRopeFrequencies(4, 10000, {});
  EXPECT_EQ(got.inverse, (std::vector<float>{1.0f, 0.01f}));
  EXPECT_EQ(got.attention_factor, 1.0f);
}

TEST(RopeScalingTest, TheAttentionFactorMultipliesCosinesAndSines) {
  const RopeTable table = MakeRopeTable(2, {.inverse = {0.5f}, .attention_factor = 2.0f});
  EXPECT_FLOAT_EQ(table.cosines[0], 2.0f);
  EXPECT_FLOAT_EQ(table.cosines[1], 2 * std::cos(0.5f));
  EXPECT_FLOAT_EQ(table.sines[0], 0.0f);
  EXPECT_FLOAT_EQ(table.sines[1], 2 * std::sin(0.5f));
}

// 0.1 m ln 40 + 1.
TEST(RopeScalingTest, YarnMscaleGrowsWithTheLogarithmOfTheFactor) {
  EXPECT_NEAR(YarnMscale(40, 0.707), 1.2608, 5e-5);
  EXPECT_NEAR(YarnMscale(40, 1), 1.3689, 5e-5);
  EXPECT_EQ(YarnMscale(1, 1), 1);
}

TEST(RopeScalingTest, RefusesWhatItCannotCompute) {
  using enum RopeScalingKind;
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  auto refused = [](RopeScaling scaling, const char* naming, int64_t dim = 8, double theta = 1e4) {
    const absl::Status status = CheckRopeScaling(dim, theta, scaling);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << naming;
    EXPECT_THAT(std::string(status.message()), HasSubstr(naming));
  };
  EXPECT_TRUE(CheckRopeScaling(8, 1e4, {}).ok());
  refused({}, "rotary_dim", 7);
  refused({}, "rotary_dim", 0);
  refused({}, "theta", 8, 0);
  refused({}, "theta", 8, nan);
  refused({.kind = kLinear, .factor = 0}, "factor");
  refused({.kind = kLinear, .factor = inf}, "factor");
  const RopeScaling llama3 = {.kind = kLlama3, .factor = 8, .original_positions = 8192};
  EXPECT_TRUE(CheckRopeScaling(8, 1e4, llama3).ok());
  RopeScaling bad = llama3;
  bad.original_positions = 0;
  refused(bad, "original_positions");
  bad = llama3;
  bad.low_freq_factor = 0;
  refused(bad, "low_freq_factor");
  bad = llama3;
  bad.high_freq_factor = 0.5;
  refused(bad, "high_freq_factor");
  const RopeScaling yarn = {.kind = kYarn, .factor = 8, .original_positions = 8192};
  EXPECT_TRUE(CheckRopeScaling(8, 1e4, yarn).ok());
  bad = yarn;
  bad.beta_fast = 0;
  refused(bad, "beta_fast");
  bad = yarn;
  bad.beta_slow = nan;
  refused(bad, "beta_slow");
  bad = yarn;
  bad.attention_factor = -1;
  refused(bad, "attention_factor");
  refused(yarn, "theta", 8, 1.0);
}

}  // namespace
}  // namespace lynx::kernels
