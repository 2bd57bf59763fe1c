#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/collective/communicator.h"
#include "gtest/gtest.h"

// The contract of Communicator, for every implementation: a test program takes
// communicator_contract.cc in and instantiates CommunicatorTest.
namespace lynx::collective::testing {

using Group = std::vector<std::unique_ptr<Communicator>>;

// Calls `body` for each rank, on a thread of its own.
void OnEachRank(int size, const std::function<void(int rank)>& body);

struct Case {
  const char* name;
  int size;
  std::function<Group(int size, absl::Duration timeout)> make;
  // How many ranks can run here: with too few the case is skipped. Null: any number.
  std::function<int()> most = nullptr;
};
std::string CaseName(const ::testing::TestParamInfo<Case>& info);

class CommunicatorTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (GetParam().most == nullptr || GetParam().most() >= size()) return;
    GTEST_SKIP() << "GPUs needed: " << size() << ", here: " << GetParam().most();
  }
  int size() const { return GetParam().size; }
  void Make(absl::Duration timeout = absl::Seconds(60)) {
    group_ = GetParam().make(size(), timeout);
    ASSERT_EQ(group_.size(), static_cast<size_t>(size()));
  }
  void OnEach(const std::function<void(Communicator&)>& body) {
    OnEachRank(size(), [&](int rank) { body(At(rank)); });
  }
  Communicator& At(int rank) { return *group_[static_cast<size_t>(rank)]; }

  Group group_;
};

}  // namespace lynx::collective::testing
