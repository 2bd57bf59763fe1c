#include "common/base/trace_context.h"

#include <string>

#include "gtest/gtest.h"

namespace lynx {
namespace {

constexpr char kHeader[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

TEST(TraceContextTest, AHeaderIsReadAndWrittenAgain) {
  const auto context = ParseTraceparent(kHeader);
  ASSERT_TRUE(context.has_value());
  EXPECT_EQ(context->trace_id, "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(context->span_id, "00f067aa0ba902b7");
  EXPECT_EQ(context->flags, "01");
  EXPECT_EQ(FormatTraceparent(*context), kHeader);
}

TEST(TraceContextTest, LaterVersionsMaySayMore) {
  EXPECT_TRUE(ParseTraceparent("cc" + std::string(kHeader).substr(2)).has_value());
  EXPECT_TRUE(ParseTraceparent("cc" + std::string(kHeader).substr(2) + "-more").has_value());
  EXPECT_FALSE(ParseTraceparent("cc" + std::string(kHeader).substr(2) + ".more").has_value());
}

TEST(TraceContextTest, WhatIsMalformedIsNothing) {
  for (const char* header : {"", "00", "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
                             "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
                             "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
                             "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
                             "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0x",
                             "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
                             "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0",
                             "00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
                             "0g-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}) {
    EXPECT_FALSE(ParseTraceparent(header).has_value()) << header;
  }
}

TEST(TraceContextTest, ASpanOfOnesOwnStaysInTheTrace) {
  const auto parent = ParseTraceparent(kHeader);
  const TraceContext span = NewSpan(parent);
  EXPECT_EQ(span.trace_id, parent->trace_id);
  EXPECT_EQ(span.flags, parent->flags);
  EXPECT_NE(span.span_id, parent->span_id);
  const TraceContext fresh = NewSpan(std::nullopt);
  EXPECT_NE(fresh.trace_id, NewSpan(std::nullopt).trace_id);
  EXPECT_TRUE(ParseTraceparent(FormatTraceparent(fresh)).has_value());
}

}  // namespace
}  // namespace lynx
