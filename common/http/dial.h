#pragma once

#include <netdb.h>

#include <memory>

#include "absl/status/statusor.h"
#include "common/http/client.h"

// What clients of ours do before they connect. Thread-safe.
namespace lynx::http {

// The addresses of a server, in the order to try. Blocks as long as the system's resolver does.
// Unavailable: there are none; says why.
using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;
absl::StatusOr<Addresses> Resolve(const Url& url);

// A TCP socket that never blocks and sends small pieces at once; below 0: errno says why not.
int OpenSocket(int family);

}  // namespace lynx::http
