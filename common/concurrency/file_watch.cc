#include "common/concurrency/file_watch.h"

#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lynx {
namespace {

// Whether it is a folder.
bool LookAt(const std::string& path, std::string& look) {
  struct stat status;
  if (stat(path.c_str(), &status) != 0) {
    look += "-;";
    return false;
  }
  absl::StrAppend(&look, status.st_dev, " ", status.st_ino, " ", status.st_size, " ",
                  status.st_mtim.tv_sec, ".", status.st_mtim.tv_nsec, " ", status.st_ctim.tv_sec,
                  ".", status.st_ctim.tv_nsec, ";");
  return S_ISDIR(status.st_mode);
}

std::string LookAt(const std::vector<std::string>& paths) {
  std::string look;
  for (const std::string& path : paths) {
    if (!LookAt(path, look)) continue;
    std::error_code error;
    std::set<std::string> names;  // In an order that does not change by itself.
    std::filesystem::directory_iterator entries(path, error);
    for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
      names.insert(entries->path().string());
    }
    for (const std::string& name : names) LookAt(name, look);
  }
  return look;
}

}  // namespace

FileWatch::FileWatch(std::vector<std::string> paths, absl::Duration interval)
    : paths_(std::move(paths)), interval_(interval), seen_(LookAt(paths_)) {}

void FileWatch::Start(std::function<void()> changed) {
  changed_ = std::move(changed);
  thread_ = std::thread([this] { Run(); });
}

FileWatch::~FileWatch() {
  if (!thread_.joinable()) return;
  {
    MutexLock lock(mu_);
    stopping_ = true;
    wake_.NotifyAll();
  }
  thread_.join();
}

void FileWatch::Nudge() {
  MutexLock lock(mu_);
  nudged_ = true;
  wake_.NotifyAll();
}

void FileWatch::Run() {
  for (;;) {
    bool call = false;
    {
      const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(interval_);
      MutexLock lock(mu_);
      while (!stopping_ && !nudged_ && wake_.WaitUntil(mu_, deadline)) {
      }
      if (stopping_) return;
      call = std::exchange(nudged_, false);
    }
    // Looked at before the call: what changes during it is seen next time.
    std::string look = LookAt(paths_);
    if (std::exchange(seen_, look) != look) call = true;
    if (call) changed_();
  }
}

}  // namespace lynx
