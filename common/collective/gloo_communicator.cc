#include "common/collective/gloo_communicator.h"

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <exception>
#include <set>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/status_macros.h"
#include "common/collective/missing_ranks.h"

namespace lynx::collective {
namespace {

using Milliseconds = std::chrono::milliseconds;
using SteadyClock = std::chrono::steady_clock;

// Gloo asks for the addresses of ranks by number and knows no status: the first failure is kept
// here, and thrown through it.
class GlooStore final : public gloo::rendezvous::Store {
 public:
  GlooStore(Rendezvous& rendezvous, int size, absl::Duration timeout)
      : rendezvous_(rendezvous),
        size_(size),
        deadline_(lynx::SteadyClock::Instance().Now() + timeout) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    Keep(rendezvous_.Put(Key(key), std::string(data.begin(), data.end())));
  }
  std::vector<char> get(const std::string& key) override {
    const absl::StatusOr<std::string> value =
        rendezvous_.Get(Key(key), deadline_ - lynx::SteadyClock::Instance().Now());
    Keep(absl::IsDeadlineExceeded(value.status())
             ? absl::DeadlineExceededError(
                   // As Gloo names them.
                   absl::StrCat("ranks that did not come in time: ",
                                MissingRanks(rendezvous_, Key("rank_"), size_)))
             : value.status());
    return {value->begin(), value->end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) get(key);
  }
  void wait(const std::vector<std::string>& keys, const Milliseconds&) override { wait(keys); }

  const absl::Status& failure() const { return failure_; }

 private:
  static std::string Key(const std::string& name) { return absl::StrCat("collective/", name); }

  void Keep(absl::Status status) {
    if (status.ok()) return;
    failure_ = std::move(status);
    throw gloo::IoException(std::string(failure_.message()));
  }

  Rendezvous& rendezvous_;
  const int size_;
  const absl::Time deadline_;
  absl::Status failure_;
};

// Whether this process may listen there; Gloo would end the process over it.
absl::Status CheckAddress(const std::string& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int unknown =
      address.empty() ? EAI_NONAME : getaddrinfo(address.c_str(), nullptr, &hints, &found);
  std::string why = unknown != 0 ? gai_strerror(unknown) : "";
  bool bound = false;
  for (const addrinfo* a = found; a != nullptr && !bound; a = a->ai_next) {
    const int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bound = fd >= 0 && bind(fd, a->ai_addr, a->ai_addrlen) == 0;
    if (!bound) why = std::strerror(errno);
    if (fd >= 0) close(fd);
  }
  if (found != nullptr) freeaddrinfo(found);
  if (bound) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("cannot listen at '", address, "' for other ranks: ", why));
}

}  // namespace

struct GlooCommunicator::Impl {
  std::shared_ptr<gloo::transport::Device> device;
  std::shared_ptr<gloo::rendezvous::Context> context;
  // Messages of this rank to each other one, and of it to this. Gloo pairs them by these numbers;
  // ranks of a subgroup exchange more often with each other than with the rest.
  std::vector<uint64_t> sent;
  std::vector<uint64_t> received;

  // Of the running exchange, for Interrupt().
  Mutex mu;
  gloo::transport::UnboundBuffer* sending LYNX_GUARDED_BY(mu) = nullptr;
  gloo::transport::UnboundBuffer* receiving LYNX_GUARDED_BY(mu) = nullptr;
  bool interrupted LYNX_GUARDED_BY(mu) = false;

  void SetBuffers(gloo::transport::UnboundBuffer* out, gloo::transport::UnboundBuffer* in)
      LYNX_EXCLUDES(mu) {
    MutexLock lock(mu);
    sending = out;
    receiving = in;
  }
  bool Interrupted() LYNX_EXCLUDES(mu) {
    MutexLock lock(mu);
    return interrupted;
  }
};

absl::StatusOr<std::unique_ptr<GlooCommunicator>> GlooCommunicator::Connect(
    const Options& options, Rendezvous& rendezvous) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " of a group of ", options.size));
  }
  LYNX_RETURN_IF_ERROR(CheckAddress(options.address));
  // Gloo writes to connections whose other end may be gone.
  std::signal(SIGPIPE, SIG_IGN);
  auto impl = std::make_unique<Impl>();
  impl->sent.resize(static_cast<size_t>(options.size));
  impl->received.resize(static_cast<size_t>(options.size));
  try {
    gloo::transport::tcp::attr attributes(options.address.c_str());
    impl->device = gloo::transport::tcp::CreateDevice(attributes);
  } catch (const std::exception& error) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen at '", options.address, "' for other ranks: ", error.what()));
  }
  GlooStore store(rendezvous, options.size, options.connect_timeout);
  try {
    impl->context = std::make_shared<gloo::rendezvous::Context>(options.rank, options.size);
    impl->context->setTimeout(absl::ToChronoMilliseconds(options.connect_timeout));
    impl->context->connectFullMesh(store, impl->device);
  } catch (const std::exception& error) {
    if (!store.failure().ok()) return store.failure();
    return absl::UnavailableError(
        absl::StrCat("rank ", options.rank, " cannot connect to the others: ", error.what()));
  }
  return std::unique_ptr<GlooCommunicator>(new GlooCommunicator(options, std::move(impl)));
}

GlooCommunicator::GlooCommunicator(const Options& options, std::unique_ptr<Impl> impl)
    : ExchangeCommunicator(options.rank, options.size),
      timeout_(options.timeout),
      impl_(std::move(impl)) {}

GlooCommunicator::~GlooCommunicator() = default;

absl::Status GlooCommunicator::Exchange(std::span<const std::byte> out, std::span<const Part> to,
                                        std::span<std::byte> in, std::span<const Part> from) {
  const auto deadline = SteadyClock::now() + absl::ToChronoNanoseconds(timeout_);
  const auto left = [&] {
    return std::max(Milliseconds(1),
                    std::chrono::duration_cast<Milliseconds>(deadline - SteadyClock::now()));
  };
  // Ranks, for messages only: of two that come together Gloo names one twice.
  std::set<int> awaited;
  try {
    // Gloo does not write to what it sends.
    auto sending =
        impl_->context->createUnboundBuffer(const_cast<std::byte*>(out.data()), out.size());
    auto receiving = impl_->context->createUnboundBuffer(in.data(), in.size());
    impl_->SetBuffers(sending.get(), receiving.get());
    const absl::Cleanup forget = [this] { impl_->SetBuffers(nullptr, nullptr); };
    bool going = !impl_->Interrupted();
    int sent = 0;
    int receiving_from = 0;
    for (int i = 1; going && i < size(); ++i) {
      // Each rank begins with another one.
      const int receiver = (rank() + i) % size();
      const int sender = (rank() + size() - i) % size();
      const Part& part_in = from[static_cast<size_t>(sender)];
      const Part& part_out = to[static_cast<size_t>(receiver)];
      if (part_in.bytes > 0) {
        receiving->recv(sender, impl_->received[static_cast<size_t>(sender)]++, part_in.offset,
                        part_in.bytes);
        awaited.insert(sender);
        ++receiving_from;
      }
      if (part_out.bytes > 0) {
        sending->send(receiver, impl_->sent[static_cast<size_t>(receiver)]++, part_out.offset,
                      part_out.bytes);
        ++sent;
      }
    }
    for (; going && receiving_from > 0; --receiving_from) {
      int sender = 0;
      going = receiving->waitRecv(&sender, left());
      if (going) awaited.erase(sender);
    }
    for (; going && sent > 0; --sent) going = sending->waitSend(left());
    return going ? absl::OkStatus() : absl::AbortedError("interrupted");
  } catch (const std::exception& error) {
    // Gloo has no kind of error for it.
    const bool late = SteadyClock::now() + Milliseconds(2) >= deadline;
    // One that has sent its part and was lost then; whose connection it was is known of two ranks.
    if (!late && awaited.empty() && size() == 2) {
      return absl::UnavailableError(
          absl::StrCat("rank ", 1 - rank(), " is lost: its connection broke (", error.what(), ")"));
    }
    return absl::Status(late ? absl::StatusCode::kDeadlineExceeded : absl::StatusCode::kUnavailable,
                        absl::StrCat(late ? "ranks that did not take part in time: "
                                          : "a connection to another rank broke; not heard from: ",
                                     awaited.empty() ? "none" : absl::StrJoin(awaited, ", "), " (",
                                     error.what(), ")"));
  }
}

void GlooCommunicator::Interrupt() {
  {
    MutexLock lock(impl_->mu);
    impl_->interrupted = true;
    if (impl_->receiving != nullptr) impl_->receiving->abortWaitRecv();
    if (impl_->sending != nullptr) impl_->sending->abortWaitSend();
  }
  try {
    impl_->context->closeConnections();
  } catch (const std::exception&) {
    // They are closed, or will be when the timeouts of the others have passed.
  }
}

}  // namespace lynx::collective
