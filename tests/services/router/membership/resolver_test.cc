#include "services/router/membership/resolver.h"

#include <future>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx::router {
namespace {

absl::StatusOr<std::vector<std::string>> Ask(SystemResolver& resolver, const std::string& host) {
  std::promise<absl::StatusOr<std::vector<std::string>>> answer;
  resolver.Resolve(host, [&](auto addresses) { answer.set_value(std::move(addresses)); });
  return answer.get_future().get();
}

TEST(SystemResolverTest, KnowsLocalhost) {
  ThreadEventLoop loop;
  SystemResolver resolver(loop);
  auto addresses = Ask(resolver, "localhost");
  ASSERT_TRUE(addresses.ok()) << addresses.status();
  EXPECT_THAT(*addresses, ::testing::Contains(::testing::AnyOf("127.0.0.1", "[::1]")));
}

TEST(SystemResolverTest, ANameThatCannotBeIsUnavailable) {
  ThreadEventLoop loop;
  SystemResolver resolver(loop);
  auto addresses = Ask(resolver, "no such host");
  EXPECT_EQ(addresses.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(addresses.status().message()), ::testing::HasSubstr("no such host"));
}

TEST(SystemResolverTest, StopsWithQuestionsOpen) {
  ThreadEventLoop loop;
  SystemResolver resolver(loop);
  for (int i = 0; i < 10; ++i) resolver.Resolve("localhost", [](auto) {});
}

}  // namespace
}  // namespace lynx::router
