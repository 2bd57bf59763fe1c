#include "common/http/health.h"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>

#include "common/http/client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace lynx::http {
namespace {

using ::lynx::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(HealthPagesTest, StartsNotStartedAndNotReadyButAlive) {
  telemetry::Registry registry;
  ManualClock clock;
  HealthPages pages(registry, clock);
  EXPECT_THAT(pages.ReasonsNotStarted(), ElementsAre("starting"));
  EXPECT_THAT(pages.ReasonsNotReady(), ElementsAre("starting"));
  EXPECT_THAT(pages.ReasonsNotAlive(), IsEmpty());
  pages.SetStarted();
  EXPECT_THAT(pages.ReasonsNotStarted(), IsEmpty());
  EXPECT_THAT(pages.ReasonsNotReady(), IsEmpty());
}

TEST(HealthPagesTest, ReadyOnlyWithoutAnyReasonAgainst) {
  telemetry::Registry registry;
  ManualClock clock;
  HealthPages pages(registry, clock);
  pages.SetStarted();
  pages.SetNotReady("draining", "asked to stop");
  pages.SetNotReady("no_decode_node", "none");
  pages.SetNotReady("no_decode_node", "0 of 2");
  EXPECT_THAT(pages.ReasonsNotReady(),
              ElementsAre("draining: asked to stop", "no_decode_node: 0 of 2"));
  pages.ClearNotReady("draining");
  EXPECT_THAT(pages.ReasonsNotReady(), ElementsAre("no_decode_node: 0 of 2"));
  pages.ClearNotReady("no_decode_node");
  pages.ClearNotReady("never set");
  EXPECT_THAT(pages.ReasonsNotReady(), IsEmpty());
}

TEST(HealthPagesTest, OnlyBusyWithoutProgressIsDead) {
  telemetry::Registry registry;
  ManualClock clock;
  HealthPages pages(registry, clock);
  pages.SetStarted();
  const auto engine = pages.AddHeartbeat("engine", absl::Seconds(10));
  clock.Advance(absl::Hours(1));
  EXPECT_THAT(pages.ReasonsNotAlive(), IsEmpty()) << "idle";
  engine->SetBusy(true);
  clock.Advance(absl::Seconds(10));
  EXPECT_THAT(pages.ReasonsNotAlive(), IsEmpty());
  clock.Advance(absl::Seconds(1));
  EXPECT_THAT(pages.ReasonsNotAlive(), ElementsAre(HasSubstr("engine: no progress for 11 s")));
  EXPECT_THAT(pages.ReasonsNotReady(), ElementsAre(HasSubstr("engine")));
  // Slow is not stuck: a long prefill beats once a chunk.
  for (int chunk = 0; chunk < 10; ++chunk) {
    engine->Beat();
    clock.Advance(absl::Seconds(9));
    EXPECT_THAT(pages.ReasonsNotAlive(), IsEmpty());
  }
  clock.Advance(absl::Hours(1));
  engine->SetBusy(false);
  EXPECT_THAT(pages.ReasonsNotAlive(), IsEmpty());
}

TEST(HealthPagesTest, ALoopThatStopsAnsweringIsDead) {
  telemetry::Registry registry;
  ManualClock clock;
  SimEventLoop loop(clock);
  auto pages = std::make_unique<HealthPages>(registry, clock);
  pages->WatchLoop("router loop", loop, absl::Seconds(10));
  loop.RunDue();
  for (int i = 0; i < 100; ++i) {
    loop.Advance(absl::Seconds(1));
    ASSERT_THAT(pages->ReasonsNotAlive(), IsEmpty());
  }
  clock.Advance(absl::Seconds(11));  // Time passes, the loop runs nothing.
  EXPECT_THAT(pages->ReasonsNotAlive(), ElementsAre(HasSubstr("router loop")));
  loop.RunDue();
  EXPECT_THAT(pages->ReasonsNotAlive(), IsEmpty());
  pages.reset();
  loop.Advance(absl::Seconds(10));  // The watch ends by itself.
  EXPECT_EQ(loop.RunDue(), 0);
}

TEST(HealthPagesTest, PagesAnswerWhileTheWatchedLoopIsStuck) {
  telemetry::Registry registry;
  registry.AddCounter("lynx_test_events_total", "Events.", {{"model", "a\"b\\c\nd"}}).Increment();
  std::mutex mu;
  std::condition_variable cv;
  bool release = false;
  {
    ThreadEventLoop loop;
    HealthPages pages(registry, SteadyClock::Instance());
    pages.SetStarted();
    Routes routes;
    pages.AddTo(routes);
    ServerOptions options;
    options.address = "127.0.0.1";
    auto server = HttpServer::Create(options, routes);
    ASSERT_THAT(server, IsOk());
    (*server)->Start();
    const std::string base = "http://127.0.0.1:" + std::to_string((*server)->port());
    const HttpClient client;
    const auto get = [&](const std::string& path) {
      auto response = client.Get(base + path, {}, absl::Seconds(20));
      EXPECT_THAT(response, IsOk());
      return response.ok() ? *response : HttpResponse{};
    };

    for (const char* path : {"/startupz", "/livez", "/readyz", "/health"}) {
      EXPECT_EQ(get(path).status, 200) << path;
    }
    const HttpResponse metrics = get("/metrics");
    EXPECT_EQ(metrics.status, 200);
    EXPECT_EQ(metrics.Header("content-type"), telemetry::kExpositionContentType);
    EXPECT_THAT(metrics.body, HasSubstr(R"(lynx_test_events_total{model="a\"b\\c\nd"} 1)"));

    loop.Post([&] {
      std::unique_lock lock(mu);
      cv.wait(lock, [&] { return release; });
    });
    pages.WatchLoop("stuck loop", loop, absl::Milliseconds(1));
    HttpResponse livez = get("/livez");
    while (livez.status == 200) livez = get("/livez");
    EXPECT_EQ(livez.status, 503);
    EXPECT_THAT(livez.body, HasSubstr("\"reasons\":[\"stuck loop: no progress"));
    EXPECT_EQ(get("/readyz").status, 503);
    EXPECT_EQ(get("/startupz").status, 200);
    pages.SetNotReady("draining", "said \"stop\"");
    EXPECT_THAT(get("/readyz").body, HasSubstr(R"("draining: said \"stop\"")"));
    (*server)->Stop(absl::ZeroDuration());
    {
      std::lock_guard lock(mu);
      release = true;
    }
    cv.notify_all();
  }
}

}  // namespace
}  // namespace lynx::http
