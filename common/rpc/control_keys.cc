#include "common/rpc/control_keys.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/telemetry/log.h"

namespace lynx::rpc {
namespace {

constexpr absl::Duration kFileWatchInterval = absl::Seconds(1);

telemetry::Counter Loads(telemetry::Registry& registry, const char* result) {
  return registry.AddCounter("lynx_control_key_loads_total",
                             "Readings of the control plane's keys; after a failed one those "
                             "before stay in force.",
                             {{"result", result}});
}

}  // namespace

ControlKeys::ControlKeys(std::string key_file, std::string peers_folder,
                         telemetry::Registry& registry)
    : key_file_(std::move(key_file)),
      peers_folder_(std::move(peers_folder)),
      curve_(registry.AddGauge("lynx_control_curve",
                               "1: the control plane is encrypted and asks for keys; 0: plain.")),
      loaded_(Loads(registry, "ok")),
      load_failed_(Loads(registry, "failed")) {}

absl::StatusOr<std::unique_ptr<ControlKeys>> ControlKeys::Load(const std::string& key_file,
                                                               const std::string& peers_folder,
                                                               telemetry::Registry& registry) {
  if (key_file.empty() != peers_folder.empty()) {
    return absl::InvalidArgumentError(
        "--control-key and --control-peers are given together, or neither");
  }
  auto keys = std::unique_ptr<ControlKeys>(new ControlKeys(key_file, peers_folder, registry));
  if (key_file.empty()) return keys;
  // Before the files are read, so that no change is missed.
  keys->watch_ = std::make_unique<FileWatch>(std::vector<std::string>{key_file, peers_folder},
                                             kFileWatchInterval);
  LYNX_ASSIGN_OR_RETURN(keys->keys_, keys->Read());
  keys->curve_.Set(1);
  return keys;
}

absl::StatusOr<CurveKeys> ControlKeys::Read() {
  const auto read = [this]() -> absl::StatusOr<CurveKeys> {
    CurveKeys keys;
    LYNX_ASSIGN_OR_RETURN(keys.own, LoadCurvePair(key_file_));
    LYNX_ASSIGN_OR_RETURN(keys.peers, LoadCurvePeers(peers_folder_));
    return keys;
  };
  absl::StatusOr<CurveKeys> keys = read();
  (keys.ok() ? loaded_ : load_failed_).Increment();
  return keys;
}

std::unique_ptr<FileWatch> ControlKeys::Watch(ZmqChannel& channel) {
  if (watch_ == nullptr) return nullptr;
  watch_->Start([this, &channel] {
    absl::StatusOr<CurveKeys> keys = Read();
    if (!keys.ok()) {
      telemetry::LogError("keys of the control plane not loaded, those before stay in force",
                          {{"status", std::string(keys.status().ToString())}});
      return;
    }
    telemetry::LogInfo(
        "keys of the control plane loaded anew",
        {{"own", keys->own.public_key}, {"peers", absl::StrCat(keys->peers.size())}});
    channel.SetCurveKeys(*std::move(keys));
  });
  return std::move(watch_);
}

}  // namespace lynx::rpc
