#include "services/cli/keygen.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/config/flag_set.h"
#include "common/rpc/curve_keys.h"

namespace lynx::cli {
namespace {

// Never in the place of another file, and never for a moment with a wider mode.
absl::Status Create(const std::string& path, mode_t mode, const std::string& content) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  if (fd < 0) {
    return errno == EEXIST ? absl::AlreadyExistsError(absl::StrCat(path, ": is there already"))
                           : absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  const bool written =
      write(fd, content.data(), content.size()) == static_cast<ssize_t>(content.size());
  if (close(fd) == 0 && written) return absl::OkStatus();
  unlink(path.c_str());
  return absl::UnavailableError(absl::StrCat(path, ": cannot be written"));
}

}  // namespace

absl::Status WriteCurvePair(const std::filesystem::path& stem) {
  const rpc::CurvePair pair = rpc::NewCurvePair();
  const std::string secret = stem.string() + ".key_secret";
  LYNX_RETURN_IF_ERROR(Create(secret, 0600, rpc::SecretCertificate(pair)));
  const absl::Status written = Create(stem.string() + ".key", 0644, rpc::PublicCertificate(pair));
  if (!written.ok()) unlink(secret.c_str());
  return written;
}

int RunKeygen(int argc, const char* const* argv, std::ostream& out, std::ostream& err) {
  std::string name;
  config::FlagSet flags("lynx keygen",
                        "Makes a CURVE key pair for the control plane, as ZeroMQ's certificate "
                        "files: NAME.key for the others, NAME.key_secret for its owner alone.");
  flags.AddString("name", &name, "path of the files, without their endings (required)");
  const auto outcome = flags.Parse(argc, argv);
  if (!outcome.ok()) {
    err << "lynx keygen: " << std::string(outcome.status().message()) << "\n";
    return 2;
  }
  if (*outcome == config::ParseOutcome::kPrinted) return 0;
  if (name.empty()) {
    err << "lynx keygen: --name is required\n";
    return 2;
  }
  if (const absl::Status written = WriteCurvePair(name); !written.ok()) {
    err << "lynx keygen: " << std::string(written.message()) << "\n";
    return 1;
  }
  out << name << ".key\n" << name << ".key_secret\n";
  return 0;
}

}  // namespace lynx::cli
