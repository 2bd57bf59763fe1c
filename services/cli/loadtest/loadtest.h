#pragma once

#include <ostream>

namespace lynx::loadtest {

// `lynx loadtest URL ...`: load on a server of the OpenAI API, and what its users would see. The
// report goes to `out`, progress and errors to `err`. Returns the exit status: 0 when at least one
// request succeeded, 1 when none did, 2 for a command line that cannot be.
int RunLoadtest(int argc, const char* const* argv, std::ostream& out, std::ostream& err);

}  // namespace lynx::loadtest
