// The model on a GPU, emulated: against Hugging Face transformers, as golden_test.cc does it on
// CPUs, and its plans against those of the CPUs' runner.

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/kv/swapped_kv.h"
#include "common/model/memory_need.h"
#include "common/model/model_runner.h"
#include "common/model/model_spec.h"
#include "common/moe/policy.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/golden/golden_compare.h"
#include "tests/support/cuda_emulation/emulated_device.h"
#include "tests/support/cuda_emulation/emulator.h"
#include "tests/support/golden_fixture.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_size.h"

namespace lynx::model {
namespace {

using ::lynx::testing::Blocks;
using ::lynx::testing::CompareGreedy;
using ::lynx::testing::CompareLogits;
using ::lynx::testing::GoldenPrompt;
using ::lynx::testing::GoldenTestName;
using ::lynx::testing::GoldenVariantPath;
using ::lynx::testing::IsOk;
using ::lynx::testing::kGoldenBoundF32;
using ::lynx::testing::kGoldenDivergenceBf16;
using ::lynx::testing::kGoldenVariants;
using ::lynx::testing::kKvBlocks;
using ::lynx::testing::kMostGroups;
using ::lynx::testing::LoadGoldenFixture;
using ::lynx::testing::MakeEmulatedDevice;
using ::lynx::testing::StatusIs;
using ::testing::HasSubstr;

constexpr int kMaxRows = 128;

RunnerOptions Options(const std::string& model_dir, DType dtype, kernels::Device* device) {
  return {.model_dir = model_dir,
          .compute_dtype = dtype,
          .kv_dtype = dtype,
          .kv_blocks = kKvBlocks * kMostGroups,
          .max_step_rows = kMaxRows,
          .max_step_logits = kMaxRows,
          .device = device,
          .threads = 1};
}

// An emulated GPU, on which nothing may go wrong.
class DeviceRunnerTest : public ::testing::Test {
 protected:
  void TearDown() override {
    device_ = nullptr;
    EXPECT_EQ(cuda_emulation::TakeError(), 0) << "the emulator has found a fault";
  }
  absl::StatusOr<std::unique_ptr<ModelRunner>> Load(const std::string& model_dir, DType dtype) {
    return ModelRunner::Load(Options(model_dir, dtype, device_.get()));
  }

  std::unique_ptr<kernels::Device> device_ = MakeEmulatedDevice();
};

// Of each family; --long takes all.
bool IsLong(const std::string& variant) {
  static const std::set<std::string> kEach = {
      "deepseek-v3",    "glm4-moe",      "gpt-oss",   "granitemoeshared", "llama4",
      "mixtral-window", "olmoe-clipped", "qwen2-moe", "qwen3-moe-fp8",    "qwen3-yarn"};
  return !kEach.contains(variant);
}

class GoldenDeviceTest : public DeviceRunnerTest,
                         public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    if (IsLong(GetParam()) && testing::ForTestSize(0, 0, 1) == 0) GTEST_SKIP() << "for LYNX_LONG=1";
  }
  std::string base() const { return GoldenVariantPath(GetParam()); }
  // As many of the shortest prompts as make `rows` rows: emulation is slow.
  std::vector<GoldenPrompt> Prompts(size_t rows) const {
    std::vector<GoldenPrompt> prompts = LoadGoldenFixture(base());
    std::ranges::stable_sort(prompts, {},
                             [](const GoldenPrompt& prompt) { return prompt.tokens.size(); });
    size_t count = 0;
    while (count < prompts.size() && (count == 0 || prompts[count].tokens.size() <= rows)) {
      rows -= std::min(rows, prompts[count++].tokens.size());
    }
    prompts.resize(count);
    return prompts;
  }
};

TEST_P(GoldenDeviceTest, AgreesWithTransformers) {
  auto runner = Load(base(), DType::kF32);
  ASSERT_THAT(runner, IsOk());
  const std::vector<GoldenPrompt> prompts = Prompts(60);
  EXPECT_LE(CompareLogits(**runner, prompts).worst(), kGoldenBoundF32);
  EXPECT_EQ(CompareGreedy(**runner, std::span(prompts).first(1), kGoldenBoundF32, 6), 0);
}

TEST_P(GoldenDeviceTest, InBf16TheDistributionIsTheirs) {
  auto runner = Load(base(), DType::kBf16);
  ASSERT_THAT(runner, IsOk());
  EXPECT_LE(CompareLogits(**runner, Prompts(60)).worst_kl, kGoldenDivergenceBf16);
}

INSTANTIATE_TEST_SUITE_P(Variants, GoldenDeviceTest, ::testing::ValuesIn(kGoldenVariants),
                         [](const auto& param) { return GoldenTestName(param.param); });

// What a decode step of four sequences gave.
struct DecodeTrace {
  std::vector<float> logits;
  std::vector<moe::PlanStats> plans;
};

// Prompts of the fixture's first tokens, 9 of each sequence, then one step of all.
DecodeTrace DecodeFour(ModelRunner& runner, const std::vector<GoldenPrompt>& prompts,
                       const moe::Policy& policy) {
  std::vector<std::vector<kv::BlockId>> blocks;
  blocks.reserve(4);
  std::vector<SequenceRows> step;
  for (int32_t i = 0; i < 4; ++i) {
    const std::vector<TokenId>& tokens = prompts[static_cast<size_t>(i) % prompts.size()].tokens;
    EXPECT_GE(tokens.size(), 10u);
    blocks.push_back(Blocks(runner, i, 1));
    // Others of each sequence.
    const auto part = std::span(tokens).first(10 - static_cast<size_t>(i));
    const SequenceRows prompt{.tokens = part.first(part.size() - 1), .blocks = blocks.back()};
    EXPECT_THAT(runner.Step({&prompt, 1}, nullptr), IsOk());
    step.push_back({.tokens = part.last(1),
                    .start = static_cast<int32_t>(part.size()) - 1,
                    .blocks = blocks.back(),
                    .logits_rows = 1,
                    .decode = true,
                    .policy = &policy});
  }
  EXPECT_THAT(runner.Step(step, nullptr), IsOk());
  return {.logits = {runner.logits().begin(), runner.logits().end()},
          .plans = runner.stats().plans};
}

// Plans of a policy that leaves experts out have the experts, the assignments and the effect of the
// CPUs' ones.
TEST_F(DeviceRunnerTest, PlansAreThoseOfTheCpus) {
  const std::string model = GoldenVariantPath("olmoe");
  std::vector<GoldenPrompt> prompts = LoadGoldenFixture(model);
  std::erase_if(prompts, [](const GoldenPrompt& prompt) { return prompt.tokens.size() < 10; });
  ASSERT_FALSE(prompts.empty());
  auto on_device = Load(model, DType::kF32);
  ASSERT_THAT(on_device, IsOk());
  auto on_cpus = ModelRunner::Load(Options(model, DType::kF32, nullptr));
  ASSERT_THAT(on_cpus, IsOk());
  for (const char* text : {"exact", "vote:M=2", "budget:M=2", "lynx:alpha=4,beta=3,floor=1"}) {
    SCOPED_TRACE(text);
    const auto policy = moe::ParsePolicy(text);
    ASSERT_THAT(policy, IsOk());
    const DecodeTrace got = DecodeFour(**on_device, prompts, *policy);
    const DecodeTrace want = DecodeFour(**on_cpus, prompts, *policy);
    ASSERT_EQ(got.plans.size(), want.plans.size());
    int32_t saved = 0, remapped = 0;
    for (size_t layer = 0; layer < want.plans.size(); ++layer) {
      SCOPED_TRACE(layer);
      EXPECT_EQ(got.plans[layer].experts_exact, want.plans[layer].experts_exact);
      EXPECT_EQ(got.plans[layer].experts, want.plans[layer].experts);
      EXPECT_EQ(got.plans[layer].remapped, want.plans[layer].remapped);
      EXPECT_EQ(got.plans[layer].bypass, want.plans[layer].bypass);
      EXPECT_NEAR(got.plans[layer].kept_mass_mean, want.plans[layer].kept_mass_mean, 1e-5);
      saved += want.plans[layer].experts_exact - want.plans[layer].experts;
      remapped += want.plans[layer].remapped;
    }
    if (policy->kind == moe::Policy::Kind::kVote) {
      EXPECT_GT(saved, 0) << "the test needs a policy that does something";
      EXPECT_GT(remapped, 0);
    }
    const auto largest = std::ranges::max(want.logits, {}, [](float x) { return std::abs(x); });
    for (size_t i = 0; i < want.logits.size(); ++i) {
      ASSERT_NEAR(got.logits[i], want.logits[i], kGoldenBoundF32 * std::abs(largest)) << i;
    }
    EXPECT_EQ((*on_device)->stats().expert_bytes_read, (*on_cpus)->stats().expert_bytes_read);
    EXPECT_EQ((*on_device)->stats().weight_bytes_read, (*on_cpus)->stats().weight_bytes_read);
    EXPECT_EQ((*on_device)->stats().kv_bytes_read, (*on_cpus)->stats().kv_bytes_read);
  }
}

// A row has the same bits in a step of its whole prompt, in chunks, and as a token that is decoded
// beside another sequence.
TEST_F(DeviceRunnerTest, BitsDoNotDependOnTheStep) {
  for (const char* variant : {"qwen3-moe-window", "deepseek-v3"}) {
    SCOPED_TRACE(variant);
    auto runner = Load(GoldenVariantPath(variant), DType::kBf16);
    ASSERT_THAT(runner, IsOk());
    const std::vector<TokenId> all = LoadGoldenFixture(GoldenVariantPath(variant)).back().tokens;
    ASSERT_GE(all.size(), 19u);
    const auto tokens = std::span(all).first(19);
    const std::vector<TokenId> other = {7, 3};
    const std::vector<kv::BlockId> other_blocks = Blocks(**runner, 20, 1);
    std::vector<float> want;
    for (const size_t chunk : {19u, 7u, 1u}) {
      SCOPED_TRACE(chunk);
      const std::vector<kv::BlockId> blocks = Blocks(**runner, static_cast<int32_t>(chunk) % 5, 2);
      std::vector<float> got;
      for (size_t start = 0; start < tokens.size(); start += chunk) {
        const auto part = tokens.subspan(start, std::min(chunk, tokens.size() - start));
        std::vector<SequenceRows> step = {{.tokens = part,
                                           .start = static_cast<int32_t>(start),
                                           .blocks = blocks,
                                           .logits_rows = static_cast<int32_t>(part.size()),
                                           .decode = chunk == 1}};
        if (chunk == 1) step.push_back({.tokens = other, .blocks = other_blocks});
        ASSERT_THAT((*runner)->Step(step, nullptr), IsOk());
        got.insert(got.end(), (*runner)->logits().begin(), (*runner)->logits().end());
      }
      if (want.empty()) want = got;
      EXPECT_EQ(got, want);
    }
  }
}

// KV goes to another node by way of the host, and the tokens behind it have the same bits there.
TEST_F(DeviceRunnerTest, GoesOnWithKvThatAnotherHasComputed) {
  for (const char* variant : {"olmoe", "deepseek-v3", "mixtral-window"}) {
    SCOPED_TRACE(variant);
    const std::string model = GoldenVariantPath(variant);
    const std::vector<TokenId> all = LoadGoldenFixture(model).back().tokens;
    ASSERT_GE(all.size(), 19u);
    const auto tokens = std::span(all).first(19);
    auto first = Load(model, DType::kBf16);
    ASSERT_THAT(first, IsOk());
    auto second = Load(model, DType::kBf16);
    ASSERT_THAT(second, IsOk());
    const std::vector<kv::BlockId> here = Blocks(**first, 3, 2);
    const std::vector<kv::BlockId> there = Blocks(**second, 7, 2);
    const SequenceRows prompt{.tokens = tokens.first(18), .blocks = here};
    ASSERT_THAT((*first)->Step({&prompt, 1}, nullptr), IsOk());
    auto copy = kv::SwappedKv::Copy((*first)->kv(), here, 18);
    ASSERT_THAT(copy, IsOk());
    ASSERT_THAT(copy->Restore((*second)->kv(), there), IsOk());
    std::vector<std::vector<float>> logits;
    for (const auto& [runner, blocks] : {std::pair(first->get(), &here), {second->get(), &there}}) {
      const SequenceRows next{.tokens = tokens.subspan(18),
                              .start = 18,
                              .blocks = *blocks,
                              .logits_rows = 1,
                              .decode = true};
      ASSERT_THAT(runner->Step({&next, 1}, nullptr), IsOk());
      logits.emplace_back(runner->logits().begin(), runner->logits().end());
    }
    EXPECT_EQ(logits[0], logits[1]);
  }
}

// An observer that has the step abandoned, or only counts.
class Observer final : public StepObserver {
 public:
  explicit Observer(int32_t last) : last_(last) {}
  bool OnLayerDone(int32_t layer) override {
    EXPECT_EQ(layer, calls_++);
    return layer != last_;
  }
  int32_t calls() const { return calls_; }

 private:
  const int32_t last_;
  int32_t calls_ = 0;
};

TEST_F(DeviceRunnerTest, AStepIsWatchedAbandonedAndRefusedAsOnCpus) {
  auto runner = Load(GoldenVariantPath("llama"), DType::kF32);
  ASSERT_THAT(runner, IsOk());
  ASSERT_GE((*runner)->spec().layers, 2);
  const std::vector<TokenId> tokens = {1, 2, 3};
  const std::vector<kv::BlockId> blocks = Blocks(**runner, 0, 1);
  SequenceRows rows{.tokens = tokens, .blocks = blocks, .logits_rows = 1};
  Observer all(-1);
  ASSERT_THAT((*runner)->Step({&rows, 1}, &all), IsOk());
  EXPECT_EQ(all.calls(), (*runner)->spec().layers);
  const std::vector<float> logits((*runner)->logits().begin(), (*runner)->logits().end());
  EXPECT_EQ(logits.size(), static_cast<size_t>((*runner)->spec().vocab_size));
  Observer first(0);
  EXPECT_THAT((*runner)->Step({&rows, 1}, &first), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(first.calls(), 1);
  EXPECT_TRUE((*runner)->logits().empty());
  rows.start = 14;  // Behind its blocks.
  EXPECT_THAT((*runner)->Step({&rows, 1}, nullptr),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("its blocks hold 16")));
  rows.start = 0;
  ASSERT_THAT((*runner)->Step({&rows, 1}, nullptr), IsOk());
  EXPECT_TRUE(std::ranges::equal((*runner)->logits(), logits));
}

TEST_F(DeviceRunnerTest, KvTakesTheRoomThatIsLeft) {
  RunnerOptions options = Options(GoldenVariantPath("llama"), DType::kF32, device_.get());
  options.kv_blocks = 0;
  DeviceRoom room;
  options.device_kv_blocks = [&](const DeviceRoom& left) -> absl::StatusOr<int32_t> {
    room = left;
    return 17;
  };
  auto runner = ModelRunner::Load(options);
  ASSERT_THAT(runner, IsOk());
  EXPECT_EQ((*runner)->kv().blocks(), 17);
  EXPECT_TRUE((*runner)->kv().remote());
  EXPECT_EQ(room.free, int64_t{1} << 30);
  EXPECT_EQ(room.reserve, room.free / 32);
  const auto memory = device_->Memory();
  ASSERT_THAT(memory, IsOk());
  const int64_t kv = 17 * (*runner)->kv().layout().BlockBytes();
  EXPECT_LE(memory->total - memory->free - kv, room.need.total() + room.reserve)
      << "what is promised to KV was taken by something else";
  options.device_kv_blocks = [](const DeviceRoom&) -> absl::StatusOr<int32_t> {
    return absl::ResourceExhaustedError("too little");
  };
  runner = nullptr;
  EXPECT_THAT(ModelRunner::Load(options).status(),
              StatusIs(absl::StatusCode::kResourceExhausted, "too little"));
  options.device_kv_blocks = [](const DeviceRoom& left) -> absl::StatusOr<int32_t> {
    return static_cast<int32_t>(left.free / 1024);
  };
  EXPECT_THAT(ModelRunner::Load(options).status(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("memory of the GPU")));
}

}  // namespace
}  // namespace lynx::model
