#include "common/node/request_log.h"

#include <optional>

#include "common/base/trace_context.h"
#include "common/telemetry/log.h"

namespace lynx::node {

void LogTaken(std::string_view what, uint64_t sequence, const proto::RequestNames& names) {
  const std::optional<TraceContext> trace = ParseTraceparent(names.traceparent());
  telemetry::LogInfo(what, {{"sequence", HexId(sequence)},
                            {"request_id", names.request_id()},
                            {"trace_id", trace.has_value() ? trace->trace_id : ""},
                            {"parent_span_id", trace.has_value() ? trace->span_id : ""}});
}

}  // namespace lynx::node
