#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/flag_set.h"
#include "common/kv/kv_layout.h"
#include "common/model/model_spec.h"
#include "common/transfer/handshake.h"
#include "common/transfer/ucx_engine.h"

namespace lynx::cli {

// What the two processes of `lynx bench transfer` must agree on.
struct TransferSetup {
  std::string shape = "olmoe-1b-7b";
  int32_t layers = 0;  // 0: all.
  std::string kv_dtype = "bf16";
  int32_t tokens = 2000;  // Of a prompt.
};

void AddSetupFlags(config::FlagSet& flags, TransferSetup& setup);

// Flags by which another process gets the same setup.
std::vector<std::string> FlagsOf(const TransferSetup& setup);

// InvalidArgument: names the flag. Otherwise fails as LoadModelShape does.
absl::StatusOr<model::ModelSpec> SpecOf(const TransferSetup& setup);

kv::KvLayout LayoutOf(const TransferSetup& setup, const model::ModelSpec& spec);

// A node that both ends take for one of the same model, with an incarnation of its own.
transfer::NodeIdentity MakeIdentity(const kv::KvLayout& layout);

// Names of what --transports takes.
const std::vector<std::string>& TransportNames();
// Of one of them, as UCX_TLS.
std::string UcxTransports(const std::string& transport);
transfer::UcxEngine::Options EngineOptions(const std::string& transport);

}  // namespace lynx::cli
