#include "services/router/front/tenant.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace lynx::router {
namespace {

TenantId With(std::vector<std::pair<std::string, std::string>> headers,
              const std::string& end_user = "") {
  http::HttpRequest request;
  request.headers = {headers.begin(), headers.end()};
  return TenantOf(request, end_user);
}

TEST(TenantTest, WhoSaysNothingIsOneTenant) {
  EXPECT_EQ(With({}), 0u);
  EXPECT_EQ(With({{"Authorization", ""}}), 0u);
}

TEST(TenantTest, TheGatewaysWordCountsThenTheKeyThenTheUser) {
  const TenantId gateway = With({{"X-Gateway-Inference-Fairness-Id", "a"}});
  const TenantId key = With({{"Authorization", "Bearer k"}});
  const TenantId user = With({}, "ann");
  EXPECT_EQ(std::set({gateway, key, user, TenantId{0}}).size(), 4u);
  EXPECT_EQ(With({{"authorization", "Bearer k"}, {"x-gateway-inference-fairness-id", "a"}}, "ann"),
            gateway);
  EXPECT_EQ(With({{"authorization", "Bearer k"}}, "ann"), key);
  EXPECT_EQ(With({{"authorization", "Bearer k"}}, "bob"), key) << "made-up users gain nothing";
  EXPECT_NE(With({{"x-api-key", "j"}}), With({{"x-api-key", "k"}}));
}

TEST(TenantTest, WhereKeysAreCheckedTheirNameAloneCounts) {
  http::HttpRequest request;
  request.user = "ann";
  const TenantId ann = TenantOf(request, "");
  request.headers = {{"x-gateway-inference-fairness-id", "made-up"}, {"authorization", "Bearer k"}};
  EXPECT_EQ(TenantOf(request, "made-up"), ann);
  request.user = "bob";
  EXPECT_NE(TenantOf(request, ""), ann);
}

}  // namespace
}  // namespace lynx::router
