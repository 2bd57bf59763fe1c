#include "services/router/membership/resolver.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <resolv.h>
#include <sys/socket.h>

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lynx::router {
namespace {

constexpr size_t kMaxQuestions = 256;

absl::StatusOr<std::vector<std::string>> Lookup(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat("cannot resolve ", host, ": ", gai_strerror(error)));
  }
  std::set<std::string> addresses;
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    char text[NI_MAXHOST];
    if (getnameinfo(a->ai_addr, a->ai_addrlen, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) !=
        0) {
      continue;
    }
    addresses.insert(a->ai_family == AF_INET6 ? absl::StrCat("[", text, "]") : std::string(text));
  }
  freeaddrinfo(found);
  if (addresses.empty()) return absl::UnavailableError(absl::StrCat(host, " has no address"));
  return std::vector<std::string>(addresses.begin(), addresses.end());
}

}  // namespace

SystemResolver::SystemResolver(EventLoop& loop) : loop_(loop), thread_([this] { Run(); }) {}

SystemResolver::~SystemResolver() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    wake_.NotifyOne();
  }
  thread_.join();
}

void SystemResolver::Resolve(const std::string& host, Callback done) {
  {
    MutexLock lock(mu_);
    if (questions_.size() < kMaxQuestions) {
      questions_.push_back({host, std::move(done)});
      wake_.NotifyOne();
      return;
    }
  }
  loop_.Post([host, done = std::move(done)] {
    done(absl::ResourceExhaustedError(
        absl::StrCat("cannot resolve ", host, ": ", kMaxQuestions, " names wait already")));
  });
}

void SystemResolver::Run() {
  // The state is this thread's own: 2 s a try and 2 tries, so that stopping does not take long.
  if (res_init() == 0) {
    _res.retrans = 2;
    _res.retry = 2;
  }
  for (;;) {
    Question question;
    {
      MutexLock lock(mu_);
      while (questions_.empty() && !stopping_) wake_.Wait(mu_);
      if (stopping_) return;
      question = std::move(questions_.front());
      questions_.pop_front();
    }
    auto answer = Lookup(question.host);
    loop_.Post([done = std::move(question.done), answer = std::move(answer)] { done(answer); });
  }
}

}  // namespace lynx::router
