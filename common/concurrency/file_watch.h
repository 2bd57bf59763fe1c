#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace lynx {

// Tells when files have been replaced or rewritten: by their device, inode, size and times, which
// it looks at every `interval`. That also finds what a link on the way to a file does, as
// Kubernetes swaps the files of a Secret, and works on any file system. A folder stands for what is
// in it, too, but not in folders within.
class FileWatch {
 public:
  // Changes from here on count: read the files after it.
  FileWatch(std::vector<std::string> paths, absl::Duration interval);
  ~FileWatch();  // After a running call.
  FileWatch(const FileWatch&) = delete;
  FileWatch& operator=(const FileWatch&) = delete;

  // `changed` runs on the watch's own thread, one call after another, also when a file has come or
  // gone. Once.
  void Start(std::function<void()> changed);
  // Runs `changed` soon, or once started, whether anything has changed or not. Thread-safe.
  void Nudge() LYNX_EXCLUDES(mu_);

 private:
  void Run() LYNX_EXCLUDES(mu_);

  const std::vector<std::string> paths_;
  const absl::Duration interval_;
  std::function<void()> changed_;  // Set before the thread runs.
  std::string seen_;               // What the files looked like; the thread's.
  Mutex mu_;
  CondVar wake_;
  bool nudged_ LYNX_GUARDED_BY(mu_) = false;
  bool stopping_ LYNX_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace lynx
