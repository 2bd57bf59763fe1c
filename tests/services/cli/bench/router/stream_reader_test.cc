#include "services/cli/bench/router/stream_reader.h"

#include <string>
#include <string_view>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx::cli {
namespace {

constexpr std::string_view kStream =
    "1a\r\ndata: {\"text\":\"a dat d\"}\n\n\r\n9\r\n: waiting\n\n\r\n1a\r\nddata: "
    "{\"text\":\"\"}\n\n"
    "\r\nd\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";

TEST(EventCounterTest, CountsEventsHoweverTheyAreCut) {
  for (size_t cut = 1; cut <= kStream.size(); ++cut) {
    EventCounter counter;
    int32_t events = 0;
    for (size_t at = 0; at < kStream.size(); at += cut) {
      events += counter.Feed(kStream.substr(at, cut));
    }
    EXPECT_EQ(events, 2) << cut;
    EXPECT_TRUE(counter.done()) << cut;
  }
}

TEST(EventCounterTest, AStreamThatIsCutShortIsNotDone) {
  EventCounter counter;
  EXPECT_EQ(counter.Feed("data: {}\n\ndata: [DON"), 1);
  EXPECT_FALSE(counter.done());
}

}  // namespace
}  // namespace lynx::cli
