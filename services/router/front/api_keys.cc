#include "services/router/front/api_keys.h"

#include <sys/stat.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/regular_file.h"
#include "common/base/status_macros.h"

namespace lynx::router {
namespace {

constexpr int64_t kMaxFileBytes = 1 << 20;
constexpr size_t kMaxNameBytes = 64;
constexpr int64_t kMaxPerMinute = 1'000'000'000'000;

bool IsNameChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '.';
}

bool IsHex(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

bool ReadDigest(absl::string_view text, http::Sha256Digest& digest) {
  if (text.size() != 2 * digest.size() || !std::all_of(text.begin(), text.end(), IsHex)) {
    return false;
  }
  const std::string bytes = absl::HexStringToBytes(text);
  std::copy(bytes.begin(), bytes.end(), digest.begin());
  return true;
}

absl::Status ReadLimit(absl::string_view word, RateLimits& limits) {
  int64_t* field = nullptr;
  absl::string_view value = word;
  if (absl::ConsumePrefix(&value, "requests-per-minute=")) {
    field = &limits.requests_per_minute;
  } else if (absl::ConsumePrefix(&value, "tokens-per-minute=")) {
    field = &limits.tokens_per_minute;
  } else {
    return absl::InvalidArgumentError(
        "what follows the hash must be requests-per-minute=N or tokens-per-minute=N");
  }
  if (*field != 0) return absl::InvalidArgumentError("a limit is given twice");
  if (!absl::SimpleAtoi(value, field) || *field < 1 || *field > kMaxPerMinute) {
    return absl::InvalidArgumentError(
        absl::StrCat("a limit must be a number from 1 to ", kMaxPerMinute));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ApiKeys> ApiKeys::Parse(std::string_view text, const std::string& file_name) {
  ApiKeys keys;
  std::set<http::Sha256Digest> seen;
  int line_number = 0;
  for (const absl::string_view line :
       absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    ++line_number;
    const absl::string_view content = line.substr(0, line.find('#'));
    const std::vector<absl::string_view> words =
        absl::StrSplit(content, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty()) continue;
    const auto error = [&](absl::string_view what) {
      return absl::InvalidArgumentError(absl::StrCat(file_name, ":", line_number, ": ", what));
    };
    if (words[0].size() > kMaxNameBytes ||
        !std::all_of(words[0].begin(), words[0].end(), IsNameChar)) {
      return error("a name has 1 to 64 letters, digits, '-', '_' and '.'");
    }
    http::Sha256Digest digest;
    if (words.size() < 2 || !ReadDigest(words[1], digest)) {
      return error("the name must be followed by the key's SHA-256, 64 hexadecimal digits");
    }
    if (!seen.insert(digest).second) return error("this key is in the file already");
    RateLimits limits;
    for (size_t i = 2; i < words.size(); ++i) {
      if (absl::Status read = ReadLimit(words[i], limits); !read.ok()) return error(read.message());
    }
    const auto [place, added] = keys.limits_.emplace(std::string(words[0]), limits);
    if (!added && place->second != limits) {
      return error(absl::StrCat("other limits than those of '", place->first, "' above"));
    }
    keys.keys_.push_back({digest, &place->first});
  }
  if (keys.keys_.empty()) return absl::InvalidArgumentError(file_name + ": has no keys");
  return keys;
}

const std::string* ApiKeys::FindName(std::string_view key) const {
  const http::Sha256Digest digest = http::Sha256(key);
  const std::string* name = nullptr;
  for (const Key& candidate : keys_) {
    if (http::EqualInConstantTime(candidate.digest, digest)) name = candidate.name;
  }
  return name;
}

absl::StatusOr<ApiKeys> LoadApiKeys(const std::filesystem::path& path) {
  LYNX_ASSIGN_OR_RETURN(const RegularFile file, RegularFile::Open(path));
  struct stat status;
  if (fstat(file.fd(), &status) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(path.string(), ": cannot be looked at"));
  }
  if ((status.st_mode & (S_IROTH | S_IWOTH)) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat(path.string(), ": anybody may read or write it; chmod o-rw ", path.string()));
  }
  if (file.size() > kMaxFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path.string(), ": larger than ", kMaxFileBytes, " bytes"));
  }
  const absl::StatusOr<std::string> text = file.ReadAll();
  if (!text.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(path.string(), ": ", text.status().message()));
  }
  return ApiKeys::Parse(*text, path.string());
}

}  // namespace lynx::router
