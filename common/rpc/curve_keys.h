#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Keys of the control plane's ends for CURVE, ZeroMQ's encryption and authentication
// (rfc.zeromq.org/spec/26), in the certificate files that ZeroMQ's tools write and read
// (CZMQ's zcert, pyzmq's zmq.auth): NAME.key for everybody, NAME.key_secret for its owner.
namespace lynx::rpc {

// Both in Z85, 40 characters.
struct CurvePair {
  std::string public_key;
  std::string secret_key;
};

// From the system's source of randomness.
CurvePair NewCurvePair();

// What goes into NAME.key and NAME.key_secret.
std::string PublicCertificate(const CurvePair& pair);
std::string SecretCertificate(const CurvePair& pair);

// Who this end is, and whose keys it takes for those of peers.
struct CurveKeys {
  CurvePair own;
  std::set<std::string> peers;  // Public keys, in Z85; not empty.
};

// Reads a secret certificate.
//   NotFound, InvalidArgument  the file is missing, malformed, or its two keys are no pair.
//   PermissionDenied           others than its owner may read or write it; names the mode. That a
//                              group may read it is fine where the file is root's, as it is of
//                              a Secret that Kubernetes mounts.
// All name the file, and none its content.
absl::StatusOr<CurvePair> LoadCurvePair(const std::filesystem::path& file);

// Reads the public keys of every *.key in a folder: at least one, at most 4096. InvalidArgument,
// NotFound: names the folder or the file.
absl::StatusOr<std::set<std::string>> LoadCurvePeers(const std::filesystem::path& folder);

// Of a certificate: the public key, and the secret one if it is there, else empty. InvalidArgument
// says what is wrong, without the text.
absl::StatusOr<CurvePair> ParseCertificate(std::string_view text);

}  // namespace lynx::rpc
