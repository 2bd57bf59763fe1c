#pragma once

#include <ostream>

namespace lynx::cli {

// What the router's own share of a token's way is measured against: a process that sends every
// byte it gets back on the connection it came on, with one thread of Boost.Asio, as the router's
// HTTP server has. Announces its address and runs until SIGTERM.
int RunEchoServer(int argc, const char* const* argv, std::ostream& out, std::ostream& err);

}  // namespace lynx::cli
