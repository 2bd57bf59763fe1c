#include "services/router/session/node_breakers.h"

#include "common/base/clock.h"
#include "gtest/gtest.h"

namespace lynx::router {
namespace {

class NodeBreakersTest : public ::testing::Test {
 protected:
  void Fail(int times, NodeId node = 1) {
    for (int i = 0; i < times; ++i) breakers_.OnFailure(node, clock_.Now());
  }
  bool Open(NodeId node = 1) const { return breakers_.Open(node, clock_.Now()); }

  ManualClock clock_;
  NodeBreakers breakers_{{.failures = 3, .open = absl::Seconds(2), .most_open = absl::Seconds(7)}};
};

TEST_F(NodeBreakersTest, OpensAfterSoManyFailuresWithoutASuccess) {
  Fail(2);
  EXPECT_FALSE(Open());
  breakers_.OnSuccess(1);
  Fail(2);
  EXPECT_FALSE(Open()) << "they no longer count";
  Fail(1);
  EXPECT_TRUE(Open());
  EXPECT_FALSE(Open(2));
  EXPECT_EQ(breakers_.tripped(), 1);
}

TEST_F(NodeBreakersTest, OpensForLongerEachTimeTheNodeFailsAgain) {
  Fail(3);
  for (const int seconds : {2, 4, 7, 7}) {
    Fail(5);  // Sent before it opened.
    clock_.Advance(absl::Seconds(seconds) - absl::Milliseconds(1));
    EXPECT_TRUE(Open());
    clock_.Advance(absl::Milliseconds(1));
    EXPECT_FALSE(Open()) << "it is tried again";
    EXPECT_EQ(breakers_.tripped(), 1);
    Fail(1);
    EXPECT_TRUE(Open());
  }
}

TEST_F(NodeBreakersTest, SuccessForgetsEverything) {
  Fail(3);
  clock_.Advance(absl::Seconds(2));
  breakers_.OnSuccess(1);
  EXPECT_EQ(breakers_.tripped(), 0);
  Fail(2);
  EXPECT_FALSE(Open());
  breakers_.OnGone(1);
  EXPECT_TRUE(breakers_.empty());
}

}  // namespace
}  // namespace lynx::router
