#include "common/base/trace_context.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/ids.h"

namespace lynx {
namespace {

constexpr size_t kTraceAt = 3;
constexpr size_t kSpanAt = kTraceAt + 32 + 1;
constexpr size_t kFlagsAt = kSpanAt + 16 + 1;
constexpr size_t kSize = kFlagsAt + 2;

bool IsHex(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool IsId(std::string_view text) {
  return IsHex(text) && text.find_first_not_of('0') != std::string_view::npos;
}

}  // namespace

std::optional<TraceContext> ParseTraceparent(std::string_view header) {
  if (header.size() < kSize) return std::nullopt;
  const std::string_view version = header.substr(0, 2);
  if (!IsHex(version) || version == "ff") return std::nullopt;
  if (header.size() > kSize && (version == "00" || header[kSize] != '-')) return std::nullopt;
  if (header[kTraceAt - 1] != '-' || header[kSpanAt - 1] != '-' || header[kFlagsAt - 1] != '-') {
    return std::nullopt;
  }
  const std::string_view trace = header.substr(kTraceAt, 32);
  const std::string_view span = header.substr(kSpanAt, 16);
  const std::string_view flags = header.substr(kFlagsAt, 2);
  if (!IsId(trace) || !IsId(span) || !IsHex(flags)) return std::nullopt;
  return TraceContext{std::string(trace), std::string(span), std::string(flags)};
}

std::string FormatTraceparent(const TraceContext& context) {
  return absl::StrCat("00-", context.trace_id, "-", context.span_id, "-", context.flags);
}

TraceContext NewSpan(const std::optional<TraceContext>& parent) {
  if (!parent.has_value()) {
    return {absl::StrCat(HexId(RandomId()), HexId(RandomId())), HexId(RandomId()), "00"};
  }
  return {parent->trace_id, HexId(RandomId()), parent->flags};
}

}  // namespace lynx
