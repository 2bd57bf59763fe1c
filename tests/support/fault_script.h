#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lynx::testing {

// What happens to a simulated cluster, and when: one event a line, as in
//
//   120 submit 33 20      after 120 ms a client asks for 20 tokens behind a prompt of 33
//   5 cancel 2            the client of the third request leaves
//   0 kill decode-0       (kill -9), start, freeze (SIGSTOP), thaw
//   7 cut prefill-1       nothing that it says on the control plane arrives; heal
//   0 drain decode-0      (SIGTERM), and whether it is through or not, restart
//   0 drop decode-0 2     of its next two messages none arrives; double, delay (by 300 ms); router,
//   too 3 lose prefill-0 4    what becomes of the fourth from now of the messages of its hand-offs;
//   corrupt,
//                         fail, hang, break, twice, late (by 5 s)
struct FaultEvent {
  enum Op : uint8_t {
    kSubmit,
    kCancel,
    kKill,
    kStart,
    kFreeze,
    kThaw,
    kCut,
    kHeal,
    kDrain,
    kRestart,
    kDrop,
    kDouble,
    kDelay,
    kLose,
    kCorrupt,
    kFail,
    kHang,
    kBreak,
    kTwice,
    kLate,
  };
  int32_t after_ms = 0;  // Since the event before.
  Op op = kSubmit;
  std::string who;
  int32_t a = 0;
  int32_t b = 0;
  bool operator==(const FaultEvent&) const = default;
};
inline constexpr int kFaultOps = FaultEvent::kLate + 1;

using FaultScript = std::vector<FaultEvent>;

std::string Print(const FaultScript& script);
// InvalidArgument names the line.
absl::StatusOr<FaultScript> ParseFaultScript(const std::string& text);

// Requests and faults as `seed` draws them, for a cluster of so many nodes.
FaultScript RandomFaults(uint64_t seed, int events, int prefill, int decode);

// A script of some events of `script`, in their order and at their times, that still fails, of
// which (as far as `tries` trials go) none can be left out.
FaultScript Shrink(FaultScript script, const std::function<bool(const FaultScript&)>& fails,
                   int tries);

}  // namespace lynx::testing
