#include "services/cli/bench/transfer/transfer_setup.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/dtype.h"
#include "common/base/ids.h"
#include "common/base/status_macros.h"
#include "common/transfer/copy_plan.h"
#include "services/cli/bench/model_shape.h"

namespace lynx::cli {

void AddSetupFlags(config::FlagSet& flags, TransferSetup& setup) {
  flags.AddString("shape", &setup.shape,
                  absl::StrCat("Model whose KV blocks move: ", absl::StrJoin(ShapeNames(), ", "),
                               ", or the path of a config.json"));
  flags.AddInt("layers", &setup.layers, {0, 10000}, "Layers of the shape; 0: all");
  flags.AddChoice("kv-dtype", &setup.kv_dtype, {"f32", "bf16"}, "KV cache");
  flags.AddInt("tokens", &setup.tokens, {1, 1 << 20}, "Tokens of a prompt");
}

std::vector<std::string> FlagsOf(const TransferSetup& setup) {
  return {absl::StrCat("--shape=", setup.shape), absl::StrCat("--layers=", setup.layers),
          absl::StrCat("--kv-dtype=", setup.kv_dtype), absl::StrCat("--tokens=", setup.tokens)};
}

absl::StatusOr<model::ModelSpec> SpecOf(const TransferSetup& setup) {
  LYNX_ASSIGN_OR_RETURN(ModelShape shape, ShapeOfFlag(setup.shape));
  if (setup.layers > shape.spec.layers) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--layers: %d, the shape has %d", setup.layers, shape.spec.layers));
  }
  if (setup.layers > 0) KeepLayers(setup.layers, shape.spec);
  shape.spec.max_positions = std::max(shape.spec.max_positions, setup.tokens + 1);
  return std::move(shape.spec);
}

kv::KvLayout LayoutOf(const TransferSetup& setup, const model::ModelSpec& spec) {
  return model::KvLayoutOf(spec, DTypeNamed(setup.kv_dtype).value());
}

transfer::NodeIdentity MakeIdentity(const kv::KvLayout& layout) {
  return {.incarnation = RandomId(),
          .compatibility_hash = "lynx-bench-transfer",
          .numeric_class = "",
          .layout = transfer::DescribeLayout(layout, layout.kv_heads, /*tp_size=*/1, /*tp_rank=*/0,
                                             /*head_begin=*/0)};
}

const std::vector<std::string>& TransportNames() {
  static const std::vector<std::string> names = {"tcp", "shm"};
  return names;
}

std::string UcxTransports(const std::string& transport) {
  return transport == "shm" ? "posix" : transport;
}

transfer::UcxEngine::Options EngineOptions(const std::string& transport) {
  return {.transports = UcxTransports(transport),
          .net_devices = "",
          .reports_dead_peers = transport != "shm"};
}

}  // namespace lynx::cli
