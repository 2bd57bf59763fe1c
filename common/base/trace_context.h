#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lynx {

// Where a request belongs in a trace, as W3C Trace Context has it.
struct TraceContext {
  std::string trace_id;  // 32 lower-case hexadecimal digits, not all 0.
  std::string span_id;   // 16 of them.
  std::string flags;     // 2 of them.
};

// What a traceparent header says; nothing when it is malformed. Of later versions what version 00
// knows.
std::optional<TraceContext> ParseTraceparent(std::string_view header);
std::string FormatTraceparent(const TraceContext& context);

// A span of one's own, in the trace of `parent` or, without it, in a new one that nobody samples.
// Of random ids.
TraceContext NewSpan(const std::optional<TraceContext>& parent);

}  // namespace lynx
