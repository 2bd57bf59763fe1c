#include "common/rpc/curve_keys.h"

#include <sys/stat.h>
#include <zmq.h>

#include <array>
#include <cstdint>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/regular_file.h"
#include "common/base/status_macros.h"

namespace lynx::rpc {
namespace {

constexpr size_t kZ85Chars = 40;
constexpr size_t kKeyBytes = 32;
constexpr int64_t kMaxFileBytes = 64 << 10;
constexpr size_t kMaxPeers = 4096;
constexpr std::string_view kPublicKey = "public-key";
constexpr std::string_view kSecretKey = "secret-key";

using Z85 = std::array<char, kZ85Chars + 1>;  // With the 0 at its end.

bool IsKey(const std::string& text) {
  std::array<uint8_t, kKeyBytes> bytes;
  return text.size() == kZ85Chars && zmq_z85_decode(bytes.data(), text.c_str()) != nullptr;
}

absl::Status Named(const std::filesystem::path& file, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat(file.string(), ": ", std::string(status.message())));
}

absl::StatusOr<CurvePair> ReadCertificate(const std::filesystem::path& path,
                                          const RegularFile& file) {
  if (file.size() > kMaxFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path.string(), ": larger than ", kMaxFileBytes, " bytes"));
  }
  const absl::StatusOr<std::string> text = file.ReadAll();
  if (!text.ok()) return absl::InvalidArgumentError(Named(path, text.status()).message());
  absl::StatusOr<CurvePair> pair = ParseCertificate(*text);
  if (!pair.ok()) return Named(path, pair.status());
  return pair;
}

}  // namespace

CurvePair NewCurvePair() {
  Z85 public_key;
  Z85 secret_key;
  // Fails only where libzmq was built without CURVE, and such a one is not for us.
  LYNX_CHECK(zmq_curve_keypair(public_key.data(), secret_key.data()) == 0);
  return {.public_key = public_key.data(), .secret_key = secret_key.data()};
}

std::string PublicCertificate(const CurvePair& pair) {
  return absl::StrCat(
      "#   ZeroMQ CURVE public certificate: for everybody to read, for nobody else "
      "to change\n\nmetadata\ncurve\n    public-key = \"",
      pair.public_key, "\"\n");
}

std::string SecretCertificate(const CurvePair& pair) {
  return absl::StrCat(
      "#   ZeroMQ CURVE **secret** certificate: for its owner alone\n\n"
      "metadata\ncurve\n    public-key = \"",
      pair.public_key, "\"\n    secret-key = \"", pair.secret_key, "\"\n");
}

absl::StatusOr<CurvePair> ParseCertificate(std::string_view text) {
  CurvePair pair;
  for (const absl::string_view raw :
       absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    const absl::string_view line = absl::StripAsciiWhitespace(raw);
    const size_t equals = line.find('=');
    if (line.empty() || line[0] == '#' || equals == absl::string_view::npos) continue;
    const absl::string_view name = absl::StripTrailingAsciiWhitespace(line.substr(0, equals));
    const bool is_public = name == absl::string_view(kPublicKey.data(), kPublicKey.size());
    if (!is_public && name != absl::string_view(kSecretKey.data(), kSecretKey.size())) continue;
    absl::string_view value = absl::StripLeadingAsciiWhitespace(line.substr(equals + 1));
    const bool quoted =
        value.size() >= 2 && (value[0] == '"' || value[0] == '\'') && value.back() == value[0];
    if (quoted) value = value.substr(1, value.size() - 2);
    std::string& key = is_public ? pair.public_key : pair.secret_key;
    if (!key.empty()) return absl::InvalidArgumentError(absl::StrCat("'", name, "' occurs twice"));
    key = std::string(value);
    if (!IsKey(key)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", name, "' is no CURVE key: 40 characters of Z85 in quotes"));
    }
  }
  if (pair.public_key.empty()) {
    return absl::InvalidArgumentError("no certificate: it has no 'public-key'");
  }
  return pair;
}

absl::StatusOr<CurvePair> LoadCurvePair(const std::filesystem::path& path) {
  LYNX_ASSIGN_OR_RETURN(const RegularFile file, RegularFile::Open(path));
  struct stat status;
  if (fstat(file.fd(), &status) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(path.string(), ": cannot be looked at"));
  }
  const mode_t allowed = S_IRWXU | (status.st_uid == 0 ? S_IRGRP : 0);
  if ((status.st_mode & ACCESSPERMS & ~allowed) != 0) {
    return absl::PermissionDeniedError(
        absl::StrFormat("%s: has mode %04o, a secret key must be its owner's alone; chmod 600 %s",
                        path.string(), status.st_mode & ALLPERMS, path.string()));
  }
  LYNX_ASSIGN_OR_RETURN(CurvePair pair, ReadCertificate(path, file));
  if (pair.secret_key.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path.string(), ": no secret certificate: it has no 'secret-key'"));
  }
  Z85 derived;
  if (zmq_curve_public(derived.data(), pair.secret_key.c_str()) != 0 ||
      pair.public_key != derived.data()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path.string(), ": its public key is not that of its secret key"));
  }
  return pair;
}

absl::StatusOr<std::set<std::string>> LoadCurvePeers(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::directory_iterator entries(folder, error);
  std::set<std::string> keys;
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    if (entries->path().extension() != ".key") continue;
    const absl::StatusOr<RegularFile> file = RegularFile::Open(entries->path());
    if (absl::IsNotFound(file.status())) continue;  // Removed while we look.
    if (!file.ok()) return file.status();
    LYNX_ASSIGN_OR_RETURN(const CurvePair pair, ReadCertificate(entries->path(), *file));
    keys.insert(pair.public_key);
    if (keys.size() > kMaxPeers) {
      return absl::InvalidArgumentError(
          absl::StrCat(folder.string(), ": more than ", kMaxPeers, " keys"));
    }
  }
  if (error) {
    return absl::NotFoundError(
        absl::StrCat(folder.string(), ": cannot be read as a folder: ", error.message()));
  }
  if (keys.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder.string(), ": has no *.key, so nobody could be a peer"));
  }
  return keys;
}

}  // namespace lynx::rpc
