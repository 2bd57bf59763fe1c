#include "services/router/membership/nodes_page.h"

#include <nlohmann/json.hpp>

#include "common/base/ids.h"
#include "common/base/step_time.h"
#include "common/proto/step_time_wire.h"

namespace lynx::router {
namespace {

using nlohmann::json;

json OneNode(const Member& member, absl::Time now) {
  json node = {{"endpoint", member.endpoint},
               {"role", Name(member.role)},
               {"state", Name(member.state)},
               {"detail", member.detail}};
  if (member.id == 0) return node;
  const proto::NodeStatus& status = member.status;
  const StepTime step = StepTimeFromWire(status.step_time());
  node.update({{"incarnation", HexId(member.incarnation)},
               {"heard_seconds_ago", absl::ToDoubleSeconds(now - member.last_heard)},
               {"model", status.model_name()},
               {"compatibility_hash", status.compatibility_hash()},
               {"numeric_class", status.numeric_class()},
               {"remaps", status.remaps()},
               {"transport", status.transport()},
               {"max_context_tokens", status.max_context_tokens()},
               {"kv_blocks", status.kv_blocks_total()},
               {"kv_blocks_free", status.kv_blocks_free()},
               {"running", status.running_sequences()},
               {"waiting", status.waiting_sequences()},
               {"queued_prompt_tokens", status.queued_prompt_tokens()},
               {"step_base_seconds", absl::ToDoubleSeconds(step.base)},
               {"step_row_seconds", absl::ToDoubleSeconds(step.per_row)},
               {"tokens_total", status.totals().tokens()},
               {"moe_plans_total", status.totals().plans()},
               {"moe_experts_exact_total", status.totals().experts_exact()},
               {"moe_experts_total", status.totals().experts()}});
  return node;
}

}  // namespace

std::string NodesPage(const NodeTable& nodes, absl::Time now) {
  json list = json::array();
  for (const auto& [endpoint, member] : nodes.members()) list.push_back(OneNode(member, now));
  // What nodes send may be anything.
  return json{{"nodes", std::move(list)}}.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace lynx::router
