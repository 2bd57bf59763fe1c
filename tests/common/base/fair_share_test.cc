#include "common/base/fair_share.h"

#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <tuple>

#include "gtest/gtest.h"
#include "tests/support/test_size.h"

namespace lynx {
namespace {

// A queue in the order of places, served one at a time.
class Queue {
 public:
  void Arrive(TenantId tenant, double cost) {
    queue_.insert({share_.Place(tenant), next_++, tenant, cost});
    share_.Charge(tenant, cost);
  }
  // Serves the first; who that was.
  TenantId Serve() {
    const auto [place, arrival, tenant, cost] = *queue_.begin();
    queue_.erase(queue_.begin());
    last_arrival_ = arrival;
    share_.Advance(place);
    share_.Serve(cost);
    served_[tenant] += cost;
    return tenant;
  }
  bool empty() const { return queue_.empty(); }
  size_t size() const { return queue_.size(); }
  double served(TenantId tenant) { return served_[tenant]; }
  uint64_t last_arrival() const { return last_arrival_; }
  FairShare& share() { return share_; }

 private:
  FairShare share_;
  std::set<std::tuple<double, uint64_t, TenantId, double>> queue_;
  uint64_t next_ = 1;
  uint64_t last_arrival_ = 0;
  std::map<TenantId, double> served_;
};

TEST(FairShareTest, OneTenantIsServedInOrderOfArrival) {
  std::mt19937_64 rng(1);
  Queue queue;
  uint64_t last = 0;
  for (int i = 0; i < 10000; ++i) {
    if (queue.empty() || rng() % 2 == 0) {
      queue.Arrive(0, static_cast<double>(rng() % 1000));
    } else {
      queue.Serve();
      ASSERT_EQ(queue.last_arrival(), last + 1);
      last = queue.last_arrival();
    }
  }
}

TEST(FairShareTest, AFloodOfOneDoesNotHoldUpAnother) {
  Queue queue;
  for (int i = 0; i < 1000; ++i) queue.Arrive(1, 100);
  for (int i = 0; i < 10; ++i) queue.Serve();
  queue.Arrive(2, 100);
  queue.Serve();
  EXPECT_EQ(queue.Serve() == 2 || queue.served(2) > 0, true) << "one or none goes before it";
}

TEST(FairShareTest, SharesAreEqualByCostNotByNumber) {
  Queue queue;
  for (int i = 0; i < 2000; ++i) {
    queue.Arrive(1, 1000);
    for (int k = 0; k < 10; ++k) queue.Arrive(2, 100);
  }
  for (int i = 0; i < 5000; ++i) queue.Serve();
  EXPECT_NEAR(queue.served(1) / queue.served(2), 1, 0.02);
}

TEST(FairShareTest, WhatNobodyElseWantedIsNotHeldAgainstATenant) {
  Queue queue;
  for (int i = 0; i < 1000; ++i) {
    queue.Arrive(1, 100);
    queue.Serve();
  }
  for (int i = 0; i < 100; ++i) {
    queue.Arrive(1, 100);
    queue.Arrive(2, 100);
  }
  const double before = queue.served(1);
  for (int i = 0; i < 100; ++i) queue.Serve();
  EXPECT_NEAR(queue.served(1) - before, queue.served(2), 200);
}

TEST(FairShareTest, NobodyStarvesThoughNewTenantsKeepComing) {
  Queue queue;
  for (int i = 0; i < 20; ++i) queue.Arrive(1, 100);
  TenantId newcomer = 2;
  int rounds = 0;
  while (queue.served(1) < 2000) {
    queue.Arrive(newcomer++, 100);  // As fast as the server serves.
    queue.Serve();
    ASSERT_LT(++rounds, 2000);
  }
}

TEST(FairShareTest, TenantsThatHaveNothingLeftAreForgotten) {
  std::mt19937_64 rng(5);
  Queue queue;
  for (TenantId tenant = 1; tenant < 100000; ++tenant) {
    queue.Arrive(tenant, static_cast<double>(1 + rng() % 100));
    if (queue.size() > 50) queue.Serve();
    ASSERT_LT(queue.share().tenants(), 2000u);
  }
}

TEST(FairShareTest, MadeUpNamesAreBounded) {
  FairShare share;
  for (TenantId tenant = 1; tenant < 100000; ++tenant) share.Charge(tenant, 1);
  EXPECT_LE(share.tenants(), 16385u);
}

}  // namespace
}  // namespace lynx
