#include "common/collective/rank_group.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/collective/frame_socket.h"
#include "common/collective/memory_rendezvous.h"

namespace lynx::collective {
namespace {

using SteadyClock = std::chrono::steady_clock;
using Frame = FrameSocket::Frame;

enum Kind : uint8_t {
  kHello = 1,   // Of one that comes: who it is.
  kAccept = 2,  // It may stay, ...
  kRefuse = 3,  // ... or not: a status.
  kReady = 4,   // All are there.
  kPut = 5,     // A key and a value for the rendezvous.
  kMessage = 6,
  kReport = 7,
  kBeat = 8,
  kLeave = 9,  // A status.
  kTell = 10,
};

constexpr uint32_t kMagic = 0x314b4e52;  // With the version of this protocol.
constexpr char kNoHello[] = "it does not say which rank it is";
constexpr size_t kMaxHelloBytes = 4096;
constexpr size_t kMaxKeyBytes = 256;
constexpr size_t kMaxStatusBytes = 4096;
constexpr size_t kMaxInbox = 1024;
// Connections that have not said who they are, beside one of each rank, for so long.
constexpr size_t kMaxStrangers = 64;
constexpr auto kStrangerTime = std::chrono::seconds(5);
constexpr auto kAcceptRetry = std::chrono::milliseconds(200);
constexpr auto kDroppedInterval = std::chrono::seconds(5);  // Between words of those not let in.
constexpr auto kCheckInterval = std::chrono::milliseconds(100);
constexpr auto kTick = std::chrono::milliseconds(50);
constexpr auto kMaxBeatInterval = std::chrono::milliseconds(200);
constexpr auto kGoodbyeTime = std::chrono::milliseconds(100);
constexpr auto kConnectRetry = absl::Milliseconds(100);

void Append(uint32_t value, std::string& to) {
  to.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

bool Take(std::string_view& from, uint32_t& value) {
  if (from.size() < sizeof(value)) return false;
  std::memcpy(&value, from.data(), sizeof(value));
  from.remove_prefix(sizeof(value));
  return true;
}

std::string EncodeStatus(const absl::Status& status) {
  std::string body;
  Append(static_cast<uint32_t>(status.raw_code()), body);
  body.append(std::string(status.message()).substr(0, kMaxStatusBytes));
  return body;
}

absl::Status DecodeStatus(std::string_view body) {
  uint32_t code = 0;
  if (!Take(body, code) || code > static_cast<uint32_t>(absl::StatusCode::kUnauthenticated)) {
    return absl::InternalError("a status that cannot be read");
  }
  return absl::Status(static_cast<absl::StatusCode>(code), std::string(body));
}

// The lines of `identity` that `other` does not have.
std::string LinesOnlyIn(std::string_view identity, std::string_view other) {
  const std::vector<std::string> others = absl::StrSplit(std::string(other), '\n');
  std::vector<std::string> only;
  for (const absl::string_view line : absl::StrSplit(std::string(identity), '\n')) {
    if (std::ranges::find(others, line) == others.end()) only.emplace_back(line);
  }
  return only.empty() ? "nothing else" : absl::StrJoin(only, ", ");
}

}  // namespace

class RankGroup::Impl final : public Rendezvous {
 public:
  Impl(const Options& options, std::unique_ptr<ListenSocket> listener)
      : options_(options),
        deadline_(SteadyClock::now() + absl::ToChronoNanoseconds(options.start_timeout)),
        silence_(absl::ToChronoNanoseconds(options.silence)),
        listener_(std::move(listener)),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        members_(static_cast<size_t>(options.world)),
        reports_(static_cast<size_t>(options.world)) {
    if (listener_ != nullptr) endpoint_ = listener_->endpoint();
  }

  ~Impl() override {
    Leave(absl::OkStatus());
    {
      MutexLock lock(mu_);
      stopping_ = true;
    }
    Wake();
    if (thread_.joinable()) thread_.join();
    close(wake_);
  }

  const Options& options() const { return options_; }
  const std::string& endpoint() const { return endpoint_; }
  bool leader() const { return options_.rank == 0; }

  absl::Status Join(const std::string& identity, const std::function<absl::Status()>& check) {
    if (identity.size() > kMaxIdentityBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("an identity of ranks of ", identity.size(), " bytes"));
    }
    identity_ = identity;
    if (!leader()) {
      const absl::Status reached = ConnectToLeader(check);
      if (!reached.ok()) {
        Leave(reached);
        return reached;
      }
    }
    thread_ = std::thread([this] { Run(); });
    absl::Status late;
    for (;;) {
      if (check != nullptr) late = check();
      MutexLock lock(mu_);
      if (joined_) return absl::OkStatus();
      if (!failure_.ok()) return failure_;
      if (!late.ok()) break;
      const auto now = SteadyClock::now();
      if (now < deadline_) {
        changed_.WaitUntil(mu_, std::min(deadline_, now + kCheckInterval));
        continue;
      }
      late = absl::DeadlineExceededError(
          leader() ? absl::StrCat("ranks that did not come within ",
                                  absl::FormatDuration(options_.start_timeout), ": ",
                                  Missing([&](size_t r) { return members_[r] == nullptr; }),
                                  refused_.empty() ? "" : "; not let in: ", refused_)
                   : absl::StrCat("rank 0 at ", options_.address, " was not joined by all within ",
                                  absl::FormatDuration(options_.start_timeout)));
      break;
    }
    Leave(late);
    return late;
  }

  std::string host() const LYNX_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    for (const auto& member : members_) {
      if (member != nullptr) return member->LocalHost();
    }
    return "127.0.0.1";
  }

  absl::Status Put(const std::string& key, std::string value) override LYNX_EXCLUDES(mu_) {
    LYNX_RETURN_IF_ERROR(failure());
    std::string body;
    Append(static_cast<uint32_t>(key.size()), body);
    body += key;
    body += value;
    LYNX_RETURN_IF_ERROR(values_.Put(key, std::move(value)));
    return SendTo(kPut, body, /*but=*/0);
  }

  absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) override {
    const Clock& clock = lynx::SteadyClock::Instance();
    const absl::Time deadline = clock.Now() + timeout;
    for (;;) {
      LYNX_RETURN_IF_ERROR(failure());
      const absl::Duration left = std::max(deadline - clock.Now(), absl::ZeroDuration());
      absl::StatusOr<std::string> value = values_.Get(key, std::min(left, absl::Milliseconds(100)));
      if (!absl::IsDeadlineExceeded(value.status()) || clock.Now() >= deadline) return value;
    }
  }

  // To all members, of the leader to all but one.
  absl::Status SendTo(Kind kind, std::string_view body, size_t but) LYNX_EXCLUDES(mu_) {
    if (body.size() > kMaxMessageBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("a message to other ranks of ", body.size(), " bytes"));
    }
    std::vector<std::shared_ptr<FrameSocket>> members;
    {
      MutexLock lock(mu_);
      if (!failure_.ok()) return failure_;
      members = members_;
    }
    for (size_t r = 0; r < members.size(); ++r) {
      if (members[r] == nullptr || (leader() && r == but)) continue;
      const absl::Status sent = members[r]->Send(kind, body);
      if (sent.ok()) continue;
      Fail(Lost(r, sent));
      return failure();
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Receive() LYNX_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    while (inbox_.empty() && failure_.ok()) changed_.Wait(mu_);
    if (inbox_.empty()) return failure_;
    std::string message = std::move(inbox_.front());
    inbox_.pop_front();
    return message;
  }

  absl::StatusOr<std::vector<std::string>> Reports() LYNX_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    const auto missing = [&](size_t r) { return r > 0 && !reports_[r].has_value(); };
    for (;;) {
      if (!failure_.ok()) return failure_;
      const std::string names = Missing(missing);
      if (names.empty()) break;
      if (!changed_.WaitUntil(mu_, deadline_) && SteadyClock::now() >= deadline_) {
        return absl::DeadlineExceededError(
            absl::StrCat("ranks that were not ready within ",
                         absl::FormatDuration(options_.start_timeout), ": ", Missing(missing)));
      }
    }
    std::vector<std::string> reports;
    for (const std::optional<std::string>& report : reports_)
      reports.push_back(report.value_or(""));
    return reports;
  }

  void Fail(const absl::Status& why) { End(why, why, /*left=*/false); }

  void Leave(const absl::Status& why) {
    End(why.ok() ? absl::CancelledError("this rank has left") : why, why, /*left=*/true);
  }

 private:
  struct Connection {
    std::shared_ptr<FrameSocket> socket;
    int rank = -1;          // Not known yet.
    bool accepted = false;  // By the leader, which may be busy before.
    bool refused = false;
    SteadyClock::time_point heard;
    SteadyClock::time_point began;
  };

  absl::Status failure() const LYNX_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return failure_;
  }

  // Calls fail with `failure` from now on; the others are told `why`.
  void End(const absl::Status& failure, const absl::Status& why, bool left) LYNX_EXCLUDES(mu_) {
    {
      MutexLock lock(mu_);
      if (!failure_.ok()) return;
      left_ = left;
      failure_ = failure;
      leave_body_ = EncodeStatus(why);
      changed_.NotifyAll();
    }
    Wake();
  }

  template <typename IsMissing>
  std::string Missing(IsMissing is_missing) const LYNX_REQUIRES(mu_) {
    std::vector<size_t> ranks;
    for (size_t r = 1; r < members_.size(); ++r) {
      if (is_missing(r)) ranks.push_back(r);
    }
    return absl::StrJoin(ranks, ", ");
  }

  static absl::Status Lost(size_t rank, const absl::Status& why) {
    return absl::UnavailableError(
        absl::StrCat("rank ", rank, " is lost: ", std::string(why.message())));
  }

  void Wake() {
    const uint64_t one = 1;
    if (write(wake_, &one, sizeof(one)) < 0) return;  // Awake already.
  }

  // Until the leader has let this rank in. One that is not there yet, or has closed the connection
  // unread because too many came at once, is asked again.
  absl::Status ConnectToLeader(const std::function<absl::Status()>& check) LYNX_EXCLUDES(mu_) {
    for (;;) {
      ReadAll(SteadyClock::now());
      LYNX_RETURN_IF_ERROR(failure());
      if (!connections_.empty() && connections_.front().accepted) return absl::OkStatus();
      if (check != nullptr) LYNX_RETURN_IF_ERROR(check());
      const absl::Duration left = absl::FromChrono(deadline_ - SteadyClock::now());
      if (left <= absl::ZeroDuration()) {
        return absl::DeadlineExceededError(absl::StrCat(
            "rank 0 was not reached within ", absl::FormatDuration(options_.start_timeout), ": ",
            connections_.empty() ? not_reached_ : "it does not answer"));
      }
      if (!connections_.empty()) {
        Poll();
        continue;
      }
      if (!not_reached_.empty()) absl::SleepFor(std::min(left, kConnectRetry));
      const absl::Status sent = SendHello(left);
      if (absl::IsInvalidArgument(sent)) return sent;
      if (!sent.ok()) not_reached_ = std::string(sent.message());
    }
  }

  absl::Status SendHello(absl::Duration left) LYNX_EXCLUDES(mu_) {
    LYNX_ASSIGN_OR_RETURN(
        std::shared_ptr<FrameSocket> socket,
        FrameSocket::Connect(options_.address,
                             std::clamp(left, absl::Milliseconds(10), absl::Seconds(2)),
                             options_.silence));
    std::string hello;
    for (const uint32_t value :
         {kMagic, static_cast<uint32_t>(options_.rank), static_cast<uint32_t>(options_.world)}) {
      Append(value, hello);
    }
    LYNX_RETURN_IF_ERROR(socket->Send(kHello, hello + identity_));
    const auto now = SteadyClock::now();
    connections_.push_back({.socket = socket, .rank = 0, .heard = now, .began = now});
    MutexLock lock(mu_);
    members_[0] = std::move(socket);
    return absl::OkStatus();
  }

  // The thread: reads, sends signs of life and looks for those of others.
  void Run() {
    const auto beat_interval = std::min<SteadyClock::duration>(silence_ / 5, kMaxBeatInterval);
    auto last_tick = SteadyClock::now();
    auto last_beat = last_tick;
    for (;;) {
      Poll();
      const auto now = SteadyClock::now();
      if (now - last_tick > silence_ / 2) {
        // This process stood still itself: the others had no chance to be heard.
        for (Connection& connection : connections_) connection.heard = now;
      }
      last_tick = now;
      ReadAll(now);
      if (leader()) Admit(now);
      if (now - last_beat >= beat_interval) {
        last_beat = now;
        for (const Connection& c : connections_) {
          if (c.rank >= 0) c.socket->TrySend(kBeat, "");
        }
      }
      absl::Status failed;
      bool tell = false;
      bool stop = false;
      {
        MutexLock lock(mu_);
        failed = failure_;
        tell = joined_ && !left_;
        stop = stopping_;
      }
      if (!failed.ok()) {
        SayGoodbye();
        if (tell && !absl::IsCancelled(failed) && options_.on_lost != nullptr) {
          options_.on_lost(failed);
        }
        return;
      }
      if (stop) return;
    }
  }

  void Poll() {
    std::vector<pollfd> fds = {{.fd = wake_, .events = POLLIN, .revents = 0}};
    if (listener_ != nullptr && SteadyClock::now() >= next_accept_)
      fds.push_back({.fd = listener_->fd(), .events = POLLIN, .revents = 0});
    for (const Connection& c : connections_) {
      fds.push_back({.fd = c.socket->fd(), .events = POLLIN, .revents = 0});
    }
    poll(fds.data(), fds.size(), static_cast<int>(kTick.count()));
    uint64_t count = 0;
    if (read(wake_, &count, sizeof(count)) < 0) return;  // Nobody woke us.
  }

  void ReadAll(SteadyClock::time_point now) {
    std::vector<Frame> frames;
    for (size_t i = 0; i < connections_.size();) {
      Connection& c = connections_[i];
      frames.clear();
      absl::Status status = c.socket->Read(c.rank < 0 ? kMaxHelloBytes : kMaxMessageBytes, frames);
      if (!frames.empty()) c.heard = now;
      for (Frame& frame : frames) {
        const absl::Status handled = Handle(c, std::move(frame));
        if (handled.ok()) continue;
        status = handled;
        break;
      }
      if (status.ok() && c.rank >= 0 && c.accepted && now - c.heard > silence_) {
        status = absl::UnavailableError(
            absl::StrCat("nothing was heard of it for ", absl::FormatDuration(options_.silence)));
      }
      if (status.ok() && c.rank < 0 && now - c.began > kStrangerTime) {
        status = absl::DeadlineExceededError(kNoHello);
      }
      if (status.ok()) {
        ++i;
        continue;
      }
      OnGone(c, status, now);
      connections_.erase(connections_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  void OnGone(const Connection& c, const absl::Status& why, SteadyClock::time_point now)
      LYNX_EXCLUDES(mu_) {
    c.socket->Shutdown();
    if (c.rank < 0) {
      // Who just closes, as a probe of the port does, has asked for nothing.
      if (c.refused || absl::IsUnavailable(why)) return;
      OnDropped(
          absl::Status(why.code(), absl::StrCat("a connection that is of no rank was closed: ",
                                                std::string(why.message()))),
          now);
      return;
    }
    if (!leader() && !c.accepted && absl::IsUnavailable(why)) {
      not_reached_ = std::string(why.message());
      MutexLock lock(mu_);
      members_[0] = nullptr;
      return;
    }
    {
      MutexLock lock(mu_);
      if (leader() && !joined_) {
        // It, or another one in its place, may come again.
        members_[static_cast<size_t>(c.rank)] = nullptr;
        return;
      }
    }
    Fail(Lost(static_cast<size_t>(c.rank), why));
  }

  // An error ends the connection.
  absl::Status Handle(Connection& c, Frame frame) LYNX_EXCLUDES(mu_) {
    if (c.rank < 0) return OnHello(c, frame);
    switch (frame.kind) {
      case kAccept:
        c.accepted = true;
        return absl::OkStatus();
      case kBeat:
        return absl::OkStatus();
      case kPut:
        return OnPut(c, frame.body);
      case kLeave:
        OnLeave(c, DecodeStatus(frame.body));
        return absl::OkStatus();
      case kReport: {
        if (!leader()) break;
        MutexLock lock(mu_);
        reports_[static_cast<size_t>(c.rank)] = std::move(frame.body);
        changed_.NotifyAll();
        return absl::OkStatus();
      }
      case kRefuse:
        if (leader()) break;
        Fail(DecodeStatus(frame.body));
        return absl::OkStatus();
      case kReady: {
        if (leader()) break;
        MutexLock lock(mu_);
        joined_ = true;
        c.accepted = true;
        changed_.NotifyAll();
        return absl::OkStatus();
      }
      case kMessage: {
        if (leader()) break;
        MutexLock lock(mu_);
        if (inbox_.size() >= kMaxInbox) return absl::ResourceExhaustedError("too many messages");
        inbox_.push_back(std::move(frame.body));
        changed_.NotifyAll();
        return absl::OkStatus();
      }
      case kTell:
        if (options_.on_told != nullptr) options_.on_told(c.rank, std::move(frame.body));
        return absl::OkStatus();
      default:
        break;
    }
    return absl::InvalidArgumentError(absl::StrCat("a message of kind ", int{frame.kind}));
  }

  absl::Status OnPut(const Connection& c, const std::string& body) LYNX_EXCLUDES(mu_) {
    std::string_view rest = body;
    uint32_t key_bytes = 0;
    if (!Take(rest, key_bytes) || key_bytes > kMaxKeyBytes || key_bytes > rest.size()) {
      return absl::InvalidArgumentError("a key that cannot be read");
    }
    LYNX_RETURN_IF_ERROR(
        values_.Put(std::string(rest.substr(0, key_bytes)), std::string(rest.substr(key_bytes))));
    if (!leader()) return absl::OkStatus();
    return SendTo(kPut, body, static_cast<size_t>(c.rank));
  }

  void OnLeave(const Connection& c, const absl::Status& why) {
    if (!leader()) {
      // In the leader's words: it knows who failed.
      Fail(why.ok() ? absl::CancelledError("the leader has ended") : why);
      return;
    }
    {
      MutexLock lock(mu_);
      if (!joined_) return;  // Its connection closes, too.
    }
    Fail(absl::Status(why.ok() ? absl::StatusCode::kUnavailable : why.code(),
                      absl::StrCat("rank ", c.rank, " has ended: ",
                                   why.ok() ? "it was told to" : std::string(why.message()))));
  }

  absl::Status OnHello(Connection& c, const Frame& frame) LYNX_EXCLUDES(mu_) {
    std::string_view rest = frame.body;
    uint32_t magic = 0;
    uint32_t rank = 0;
    uint32_t world = 0;
    if (frame.kind != kHello || !Take(rest, magic)) return absl::InvalidArgumentError(kNoHello);
    absl::Status wrong;
    if (magic != kMagic) {
      wrong = absl::InvalidArgumentError(absl::StrFormat(
          "a process speaks another version of the ranks' protocol, %#x, than rank 0, %#x: the "
          "ranks of a node need the same build",
          magic, kMagic));
    } else if (!Take(rest, rank) || !Take(rest, world)) {
      return absl::InvalidArgumentError(kNoHello);
    } else if (world != static_cast<uint32_t>(options_.world)) {
      wrong = absl::InvalidArgumentError(absl::StrCat("rank ", rank, " is of a group of ", world,
                                                      ", rank 0 of one of ", options_.world));
    } else if (rank == 0 || rank >= world) {
      wrong = absl::InvalidArgumentError(
          absl::StrCat("there is no place for rank ", rank, " in a group of ", world));
    } else if (rest != identity_) {
      wrong = absl::InvalidArgumentError(absl::StrCat("rank ", rank, " is not as rank 0: it has ",
                                                      LinesOnlyIn(rest, identity_), ", rank 0 has ",
                                                      LinesOnlyIn(identity_, rest)));
    } else {
      MutexLock lock(mu_);
      if (members_[rank] != nullptr) {
        wrong = absl::AlreadyExistsError(absl::StrCat("another process is rank ", rank));
      } else {
        members_[rank] = c.socket;
      }
    }
    if (wrong.ok()) {
      c.rank = static_cast<int>(rank);
      return c.socket->Send(kAccept, "");
    }
    {
      MutexLock lock(mu_);
      refused_ = std::string(wrong.message());
    }
    if (options_.on_refused != nullptr) options_.on_refused(wrong);
    c.refused = true;
    c.socket->Send(kRefuse, EncodeStatus(wrong)).IgnoreError();
    return wrong;
  }

  // A connection that was not let in and is not told; logs are, but not of each.
  void OnDropped(const absl::Status& why, SteadyClock::time_point now) LYNX_EXCLUDES(mu_) {
    if (!leader()) return;
    ++dropped_;
    if (now < next_dropped_) return;
    next_dropped_ = now + kDroppedInterval;
    const std::string before =
        dropped_ > 1 ? absl::StrCat(", and ", dropped_ - 1, " before were not let in") : "";
    const absl::Status all(why.code(), absl::StrCat(std::string(why.message()), before));
    dropped_ = 0;
    {
      MutexLock lock(mu_);
      if (refused_.empty()) refused_ = std::string(why.message());
    }
    if (options_.on_refused != nullptr) options_.on_refused(all);
  }

  // Lets others in, until all are there.
  void Admit(SteadyClock::time_point now) LYNX_EXCLUDES(mu_) {
    if (listener_ == nullptr) return;
    while (now >= next_accept_) {
      auto accepted = listener_->Accept(options_.silence);
      if (!accepted.ok()) {
        next_accept_ = now + kAcceptRetry;
        OnDropped(accepted.status(), now);
        break;
      }
      if (*accepted == nullptr) break;
      const auto strangers = std::count_if(connections_.begin(), connections_.end(),
                                           [](const Connection& c) { return c.rank < 0; });
      if (static_cast<size_t>(strangers) >= kMaxStrangers + members_.size()) {
        OnDropped(absl::ResourceExhaustedError(
                      absl::StrCat("a connection was closed unread: ", strangers,
                                   " others have not said yet which rank they are")),
                  now);
        continue;
      }
      connections_.push_back(
          {.socket = *std::move(accepted), .accepted = true, .heard = now, .began = now});
    }
    {
      MutexLock lock(mu_);
      for (size_t r = 1; r < members_.size(); ++r) {
        if (members_[r] == nullptr) return;
      }
    }
    listener_ = nullptr;
    const absl::Status told = SendTo(kReady, "", /*but=*/0);
    if (!told.ok()) return;
    MutexLock lock(mu_);
    joined_ = failure_.ok();
    changed_.NotifyAll();
  }

  void SayGoodbye() LYNX_EXCLUDES(mu_) {
    std::string body;
    {
      MutexLock lock(mu_);
      body = leave_body_;
    }
    for (const Connection& c : connections_) {
      if (c.rank >= 0) c.socket->TrySend(kLeave, body);
      c.socket->ShutdownSends();
    }
    // Closing a connection with something unread in it would take back what was just sent.
    const auto deadline = SteadyClock::now() + kGoodbyeTime;
    std::vector<Frame> frames;
    while (!connections_.empty() && SteadyClock::now() < deadline) {
      std::erase_if(connections_, [&](const Connection& c) {
        frames.clear();
        return !c.socket->Read(kMaxMessageBytes, frames).ok();
      });
      absl::SleepFor(absl::Milliseconds(1));
    }
    for (const Connection& c : connections_) c.socket->Shutdown();
  }

  const Options options_;
  const SteadyClock::time_point deadline_;
  const SteadyClock::duration silence_;
  std::string endpoint_;
  std::string identity_;                    // Set before the thread begins.
  std::unique_ptr<ListenSocket> listener_;  // The thread's; null once all are there.
  std::vector<Connection> connections_;     // The thread's, once that runs, as are these.
  SteadyClock::time_point next_accept_;     // Not before.
  SteadyClock::time_point next_dropped_;    // Of a word of connections that were dropped.
  int64_t dropped_ = 0;                     // Since the last one.
  std::string not_reached_;                 // Why the leader was not.
  const int wake_;
  MemoryRendezvous values_;

  mutable Mutex mu_;
  CondVar changed_;
  // By rank: the leader's to the others, the others' to the leader.
  std::vector<std::shared_ptr<FrameSocket>> members_ LYNX_GUARDED_BY(mu_);
  std::vector<std::optional<std::string>> reports_ LYNX_GUARDED_BY(mu_);
  std::deque<std::string> inbox_ LYNX_GUARDED_BY(mu_);
  std::string refused_ LYNX_GUARDED_BY(mu_);     // Why the last one was not let in.
  absl::Status failure_ LYNX_GUARDED_BY(mu_);    // Not OK: the group is over.
  std::string leave_body_ LYNX_GUARDED_BY(mu_);  // What others are told of it.
  bool joined_ LYNX_GUARDED_BY(mu_) = false;
  bool left_ LYNX_GUARDED_BY(mu_) = false;
  bool stopping_ LYNX_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<RankGroup>> RankGroup::Create(const Options& options) {
  if (options.world < 1 || options.rank < 0 || options.rank >= options.world) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " of a group of ", options.world));
  }
  if (options.silence <= absl::ZeroDuration() || options.start_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a group of ranks with silence ", absl::FormatDuration(options.silence),
                     " and start_timeout ", absl::FormatDuration(options.start_timeout)));
  }
  std::unique_ptr<ListenSocket> listener;
  if (options.rank == 0) {
    auto opened = ListenSocket::Open(options.address);
    if (!opened.ok()) {
      return absl::Status(
          opened.status().code(),
          absl::StrCat("cannot listen for other ranks: ", std::string(opened.status().message())));
    }
    listener = *std::move(opened);
  }
  return std::unique_ptr<RankGroup>(
      new RankGroup(std::make_unique<Impl>(options, std::move(listener))));
}

RankGroup::RankGroup(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RankGroup::~RankGroup() = default;

std::string RankGroup::endpoint() const { return impl_->endpoint(); }
absl::Status RankGroup::Join(const std::string& identity,
                             const std::function<absl::Status()>& check) {
  return impl_->Join(identity, check);
}
void RankGroup::Fail(const absl::Status& why) { impl_->Fail(why); }
int RankGroup::rank() const { return impl_->options().rank; }
int RankGroup::world() const { return impl_->options().world; }
std::string RankGroup::host() const { return impl_->host(); }
Rendezvous& RankGroup::rendezvous() { return *impl_; }
absl::Status RankGroup::Send(std::string_view message) {
  return impl_->SendTo(kMessage, message, /*but=*/0);
}
absl::Status RankGroup::Tell(std::string_view message) {
  return impl_->SendTo(kTell, message, /*but=*/0);
}
absl::StatusOr<std::string> RankGroup::Receive() { return impl_->Receive(); }
absl::Status RankGroup::Report(std::string_view text) {
  return impl_->SendTo(kReport, text, /*but=*/0);
}
absl::StatusOr<std::vector<std::string>> RankGroup::Reports() { return impl_->Reports(); }
void RankGroup::Leave(const absl::Status& why) { impl_->Leave(why); }

}  // namespace lynx::collective
