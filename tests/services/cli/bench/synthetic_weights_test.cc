#include "services/cli/bench/synthetic_weights.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/core/float_convert.h"
#include "services/cli/bench/model_shape.h"
#include "tests/support/status_matchers.h"

namespace lynx::cli {
namespace {

using ::lynx::testing::IsOk;

float ValueAt(const model::Tensor& tensor, size_t index) {
  uint16_t bits;
  std::memcpy(&bits, tensor.data.data() + index * sizeof(bits), sizeof(bits));
  return kernels::Bf16ToF32(bits);
}

class SyntheticWeightsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto shape = LoadModelShape("olmoe-1b-7b");
    ASSERT_THAT(shape, IsOk());
    spec_ = shape->spec;
    KeepLayers(2, spec_);
  }

  model::ModelSpec spec_;
};

TEST_F(SyntheticWeightsTest, TensorsAreAsLargeAsTheModelSays) {
  const auto weights = SyntheticWeights::Create(spec_, 1);
  ASSERT_THAT(weights, IsOk());
  int64_t matrices = 0;
  for (const auto& [name, tensor] : weights->tensors()) {
    int64_t elements = 1;
    for (int64_t size : tensor.shape) elements *= size;
    EXPECT_EQ(static_cast<int64_t>(tensor.data.size()), elements * 2) << name;
    if (tensor.shape.size() > 1) matrices += elements;
  }
  EXPECT_EQ(matrices, MatrixParameters(spec_));
  EXPECT_GT(matrices * 2, 20 * SyntheticWeights::kPeriodBytes)
      << "far more than there is memory of";
}

TEST_F(SyntheticWeightsTest, ValuesAreOfTheSizeOfTrainedOnes) {
  const auto weights = SyntheticWeights::Create(spec_, 1);
  ASSERT_THAT(weights, IsOk());
  const model::Tensor& tensor =
      weights->tensors().at("model.layers.1.mlp.experts.3.gate_proj.weight");
  constexpr size_t kValues = 100000;
  const size_t last = tensor.data.size() / 2 - kValues;
  for (size_t first : {size_t{0}, last}) {
    double sum = 0;
    double squares = 0;
    for (size_t i = 0; i < kValues; ++i) {
      const double value = ValueAt(tensor, first + i);
      sum += value;
      squares += value * value;
    }
    EXPECT_NEAR(std::sqrt(squares / kValues), 0.02, 0.001);
    EXPECT_NEAR(sum / kValues, 0, 0.001);
  }
  EXPECT_EQ(ValueAt(weights->tensors().at("model.norm.weight"), 7), 1.0f);
}

TEST_F(SyntheticWeightsTest, ExpertsAndLayersDiffer) {
  const auto weights = SyntheticWeights::Create(spec_, 1);
  ASSERT_THAT(weights, IsOk());
  const auto start = [&](int layer, int expert) {
    return weights->tensors()
        .at(absl::StrCat("model.layers.", layer, ".mlp.experts.", expert, ".down_proj.weight"))
        .data.data();
  };
  EXPECT_NE(std::memcmp(start(0, 0), start(1, 0), 4096), 0);
  for (int e = 1; e < 64; ++e) EXPECT_NE(std::memcmp(start(0, 0), start(0, e), 4096), 0) << e;
}

TEST_F(SyntheticWeightsTest, TheSameSeedGivesTheSameWeights) {
  auto one = SyntheticWeights::Create(spec_, 5);
  const auto same = SyntheticWeights::Create(spec_, 5);
  const auto other = SyntheticWeights::Create(spec_, 6);
  ASSERT_THAT(one, IsOk());
  const SyntheticWeights moved = *std::move(one);
  const auto bytes = [](const SyntheticWeights& weights) {
    return weights.tensors().at("lm_head.weight").data;
  };
  EXPECT_EQ(std::memcmp(bytes(moved).data(), bytes(*same).data(), bytes(moved).size()), 0);
  EXPECT_NE(std::memcmp(bytes(moved).data(), bytes(*other).data(), 4096), 0);
}

}  // namespace
}  // namespace lynx::cli
