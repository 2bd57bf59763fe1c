#pragma once

#include "common/proto/control.pb.h"

namespace lynx::testing {

// A codec of the control plane's earlier version: leaves of `envelope` what that one knows, as if
// it had been written, or read, by a program of it. False: it has no such message.
bool ThroughEarlierProtocol(proto::Envelope& envelope);

}  // namespace lynx::testing
