#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/concurrency/event_loop.h"
#include "common/model/model_spec.h"
#include "common/rpc/zmq_channel.h"
#include "common/telemetry/metrics.h"
#include "services/cli/bench/router/stepper.h"
#include "services/cli/bench/router/token_times.h"

namespace lynx::cli {

// A prefill and a decode node that compute nothing: they speak the control protocol, grant whatever
// is asked for and give tokens at a set rate. A request's stream is its `seed`.
//
// The decode node stands for several: its streams are in groups of one batch each, each of which
// steps by itself and sends a TokenBatch a step. Made, called and destroyed by one thread.
class StubNodes {
 public:
  struct Options {
    std::string model_name;
    model::ModelSpec spec;
    int32_t streams = 0;
    int32_t batch = 0;
    absl::Duration step;         // Of every group.
    std::vector<TokenId> words;  // What the tokens are, in turn.
  };

  // `times` outlives it. Fails as ZmqChannel::Create does.
  static absl::StatusOr<std::unique_ptr<StubNodes>> Start(const Options& options,
                                                          TokenTimes& times);
  ~StubNodes();
  StubNodes(const StubNodes&) = delete;
  StubNodes& operator=(const StubNodes&) = delete;

  // Control addresses.
  const std::string& prefill() const;
  const std::string& decode() const;

  // From now on, until Pause(), decode steps. Before it every stream has its first token alone.
  void Resume();
  void Pause();
  // Ends every stream as finished, after as many tokens as it has.
  void Finish();

 private:
  class Prefill;
  class Decode;
  StubNodes(const Options& options, TokenTimes& times);

  const Options options_;
  TokenTimes& times_;
  telemetry::Registry registry_;
  ThreadEventLoop loop_;
  // Used on the loop alone.
  std::unique_ptr<Decode> decode_;
  std::unique_ptr<Prefill> prefill_;
};

}  // namespace lynx::cli
