#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/http/secret.h"

namespace lynx::router {

// What the holder of a name may use in a minute; 0: no limit.
struct RateLimits {
  int64_t requests_per_minute = 0;
  int64_t tokens_per_minute = 0;

  bool operator==(const RateLimits&) const = default;
};

// Who may call. A file has one key a line:
//
//   # name     SHA-256 of the key                      limits, if any
//   batch      2c26b46b68ffc68ff99b453c1d304134...     requests-per-minute=60
//   tokens-per-minute=90000
//
// Several lines may have one name: keys of one caller, old and new say, which share its limits.
// Immutable; thread-safe.
class ApiKeys {
 public:
  ApiKeys(ApiKeys&&) = default;
  ApiKeys& operator=(ApiKeys&&) = default;

  // InvalidArgument  a malformed line, limits of one name that differ, one hash twice, no key at
  //                  all; names `file_name` and the line, and never what is in the place of a hash.
  static absl::StatusOr<ApiKeys> Parse(std::string_view text, const std::string& file_name);

  // Whose key this is; null for nobody's. Takes as long whichever key it is.
  const std::string* FindName(std::string_view key) const;

  size_t size() const { return keys_.size(); }
  const std::map<std::string, RateLimits>& limits() const { return limits_; }  // By name.

 private:
  ApiKeys() = default;

  struct Key {
    http::Sha256Digest digest;
    const std::string* name;  // Of limits_.
  };
  std::vector<Key> keys_;
  std::map<std::string, RateLimits> limits_;
};

// Reads the file.
//   NotFound            nothing there.
//   InvalidArgument     as Parse; not a file, or too large.
//   PermissionDenied    others than its owner and group may read or write it.
absl::StatusOr<ApiKeys> LoadApiKeys(const std::filesystem::path& path);

}  // namespace lynx::router
