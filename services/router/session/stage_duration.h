#pragma once

// The histogram that says where a request's time went. Several parts of the router add stages to
// it, and one metric has one help text.
namespace lynx::router {

inline constexpr char kStageDurationName[] = "lynx_router_stage_duration_seconds";
inline constexpr char kStageDurationHelp[] =
    "Where a sequence's time to its second token went, as the router saw it";

}  // namespace lynx::router
