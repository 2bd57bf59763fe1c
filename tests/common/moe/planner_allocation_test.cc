// Counts every allocation of the process, so these tests have a program of their own.
#include <cstdint>
#include <cstdlib>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "common/moe/planner.h"
#include "gtest/gtest.h"

namespace {
int64_t allocations = 0;

void* Allocate(size_t size) {
  ++allocations;
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) std::abort();
  return memory;
}
}  // namespace

void* operator new(size_t size) { return Allocate(size); }
void* operator new[](size_t size) { return Allocate(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace lynx::moe {
namespace {

TEST(PlannerAllocationTest, NoPlanAllocates) {
  constexpr int32_t kRows = 20;
  constexpr int32_t kExperts = 72;
  constexpr int32_t kTopK = 6;
  Planner planner(kRows, kExperts, kTopK);
  RoutingPlan plan(kRows, kExperts, kTopK);
  std::mt19937 rng(3);
  std::normal_distribution<float> normal(0, 1);
  const std::vector<float> bias(kExperts, 0.1f);
  std::vector<uint8_t> valid(kRows, 1);
  valid[4] = 0;
  for (const std::string name :
       {"exact", "prune:k0=2", "vote:M=20,floor=1", "lynx_compat:alpha=1,beta=2",
        "lynx:alpha=3,beta=4,floor=1", "lynx:alpha=1,beta=none", "lynx:alpha=2,beta=9",
        "lynx:alpha=4,beta=3,self_scaled=true", "oea:k0=3", "budget:fraction=0.5,floor=1",
        "budget:coverage=0.9", "budget:row_coverage=0.8", "marginal:lambda=0.1,floor=1"}) {
    SCOPED_TRACE(name);
    const auto policy = ParsePolicy(name);
    ASSERT_TRUE(policy.ok()) << policy.status();
    const std::vector<const Policy*> policies(kRows, &*policy);
    for (int32_t rows : {kRows, 3, 1}) {
      for (bool grouped : {false, true}) {
        std::vector<float> logits(static_cast<size_t>(rows * kExperts));
        for (float& logit : logits) logit = normal(rng);
        const auto count = static_cast<size_t>(rows);
        RouterInput input{.logits = logits,
                          .rows = rows,
                          .experts = kExperts,
                          .top_k = kTopK,
                          .policies = std::span(policies).first(count),
                          .valid = std::span(valid).first(count)};
        if (grouped) {
          input.gate = {.score = Gate::Score::kSigmoid, .groups = 8, .groups_kept = 4};
          input.bias = bias;
        }
        const int64_t before = allocations;
        planner.MakePlan(input, plan);
        EXPECT_EQ(allocations, before) << rows << " rows" << (grouped ? ", grouped" : "");
      }
    }
  }
  EXPECT_GT(allocations, 0) << "nothing was counted";
}

}  // namespace
}  // namespace lynx::moe
