#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/concurrency/file_watch.h"
#include "common/rpc/curve_keys.h"
#include "common/rpc/zmq_channel.h"
#include "common/telemetry/metrics.h"

namespace lynx::rpc {

// The files of --control-key and --control-peers: read at the start, and again when they change.
// What was in force stays so when one of them is not fit.
//
// Used by one thread.
class ControlKeys {
 public:
  // Both empty: no keys, and the control plane is plain. InvalidArgument: only one is given; else
  // what LoadCurvePair and LoadCurvePeers return.
  static absl::StatusOr<std::unique_ptr<ControlKeys>> Load(const std::string& key_file,
                                                           const std::string& peers_folder,
                                                           telemetry::Registry& registry);

  // Nothing: plain.
  const std::optional<CurveKeys>& keys() const { return keys_; }

  // Hands `channel`, which was created with keys(), new ones whenever the files have changed, also
  // since Load(), while what is returned lives; null if plain. Once; this outlives it.
  std::unique_ptr<FileWatch> Watch(ZmqChannel& channel);

 private:
  ControlKeys(std::string key_file, std::string peers_folder, telemetry::Registry& registry);
  absl::StatusOr<CurveKeys> Read();

  const std::string key_file_;
  const std::string peers_folder_;
  telemetry::Gauge curve_;
  telemetry::Counter loaded_;
  telemetry::Counter load_failed_;
  std::unique_ptr<FileWatch> watch_;  // Until Watch(); null: plain.
  std::optional<CurveKeys> keys_;     // As Load() found them.
};

}  // namespace lynx::rpc
