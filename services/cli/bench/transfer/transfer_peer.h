#pragma once

#include <ostream>

namespace lynx::cli {

// The other process of `lynx bench transfer`: a decode node without an engine. Grants what is
// reserved over the control plane, takes the KV, and frees it as soon as it is adopted. Announces
// its control address and runs until SIGTERM.
int RunTransferPeer(int argc, const char* const* argv, std::ostream& out, std::ostream& err);

}  // namespace lynx::cli
