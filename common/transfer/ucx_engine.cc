#include "common/transfer/ucx_engine.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/telemetry/log.h"
#include "common/transfer/checksum.h"

namespace lynx::transfer {
namespace internal {
namespace {

constexpr unsigned kAmId = 1;
// Up to here the payload travels with its header; larger ones are offered first.
constexpr size_t kInlineBytes = 8192;
// With 64 KiB the system calls and wake-ups over TCP cost as much as the copies.
constexpr size_t kChunkBytes = 256 << 10;
constexpr const char* kSegment = "264k";  // UCX's buffer for a chunk with its headers.
// Chunks of one connection that UCX holds at a time.
constexpr int kMaxChunks = 8;
constexpr size_t kMaxLinks = 1024;
// Of messages that wait for the receiver's loop, per connection. Larger payloads are not here
// but still at the sender, so only a peer that floods us with small messages comes this far.
constexpr size_t kMaxWaitingBytes = size_t{64} << 20;
constexpr size_t kMaxWaitingMessages = 65536;
// How long a closed connection's operations may take to end by themselves before it is
// force-closed. A live peer ends them sooner and hears our goodbye; UCX's force-close of a busy
// endpoint is for peers that are stuck.
constexpr auto kDrainTimeout = std::chrono::milliseconds(500);
constexpr int kDrainPollMs = 5;
// How long destruction lets UCX wind up what was force-closed.
constexpr auto kDestructionTimeout = std::chrono::seconds(5);
constexpr auto kSettleTime = std::chrono::milliseconds(50);

constexpr char kAddressMagic[4] = {'L', 'Y', 'X', '1'};
constexpr size_t kAddressPrefix = sizeof(kAddressMagic) + sizeof(uint64_t);

enum Kind : uint32_t {
  kHello = 1,   // Opens a connection. Payload: the sender's address.
  kBye = 2,     // The sender has closed it.
  kInline = 3,  // A message with its payload.
  kOffer = 4,   // A message whose payload has `value` bytes and waits for the answer.
  kAnswer = 5,  // To an offer; value 1: send it, 0: it was refused.
  kChunk = 6,   // Bytes of an accepted payload from offset `value` on.
  kFinish = 7,  // The whole payload has arrived.
};

// First part of each message's header; the caller's header follows in kInline and kOffer. Both ends
// run on little-endian machines.
struct LinkHeader {
  uint32_t kind = 0;
  uint32_t from_connector = 0;  // 1: sent by the end that called Connect.
  uint64_t link = 0;            // Drawn by the connector.
  uint64_t message = 0;         // Of the sender of the payload.
  uint64_t value = 0;
};
static_assert(sizeof(LinkHeader) == 32);

absl::Status FromUcs(ucs_status_t status, const char* what) {
  const std::string text = absl::StrCat(what, ": ", ucs_status_string(status));
  switch (status) {
    case UCS_OK:
      return absl::OkStatus();
    case UCS_ERR_CANCELED:
      return absl::CancelledError(text);
    case UCS_ERR_INVALID_PARAM:
    case UCS_ERR_INVALID_ADDR:
      return absl::InvalidArgumentError(text);
    default:
      return absl::UnavailableError(text);
  }
}

// UCX's address with what tells damage before UCX trusts it.
std::string WrapAddress(std::string_view raw) {
  const uint64_t checksum = Checksum(std::as_bytes(std::span(raw)));
  std::string address(kAddressMagic, sizeof(kAddressMagic));
  address.append(reinterpret_cast<const char*>(&checksum), sizeof(checksum));
  address.append(raw);
  return address;
}

std::optional<std::string> UnwrapAddress(std::string_view address) {
  if (address.size() <= kAddressPrefix ||
      std::memcmp(address.data(), kAddressMagic, sizeof(kAddressMagic)) != 0) {
    return std::nullopt;
  }
  uint64_t checksum = 0;
  std::memcpy(&checksum, address.data() + sizeof(kAddressMagic), sizeof(checksum));
  const std::string_view raw = address.substr(kAddressPrefix);
  if (Checksum(std::as_bytes(std::span(raw))) != checksum) return std::nullopt;
  return std::string(raw);
}

// From UCX's description of an endpoint, e.g. "lane[0]:  2:tcp/eth0.0 md[1] ... -> am am_bw#0".
std::string TransportOf(std::string_view endpoint_info) {
  const size_t lane = endpoint_info.find("lane[0]:");
  if (lane == std::string_view::npos) return "unknown";
  const size_t slash = endpoint_info.find('/', lane);
  if (slash == std::string_view::npos) return "unknown";
  const size_t colon = endpoint_info.rfind(':', slash);
  const std::string name(endpoint_info.substr(colon + 1, slash - colon - 1));
  if (absl::StartsWith(name, "rc") || absl::StartsWith(name, "dc") ||
      absl::StartsWith(name, "ud")) {
    return "rdma";
  }
  if (name == "posix" || name == "sysv" || name == "xpmem" || name == "cma") return "shm";
  return name;
}

}  // namespace

// What belongs to the loop's thread. Shared with tasks on their way to the loop, which find
// `receiver` null once the engine is gone.
struct UcxLoopSide {
  explicit UcxLoopSide(EventLoop& l) : loop(l) {}

  struct Sending {
    PeerId peer = 0;
    TransferEngine::SendDone done;
  };

  void OnSent(uint64_t send, const absl::Status& status) {
    auto node = sends.extract(send);
    if (!node.empty()) node.mapped().done(status);
  }

  EventLoop& loop;
  TransferEngine::Receiver* receiver = nullptr;
  std::set<PeerId> peers;  // Neither closed nor down.
  std::map<uint64_t, Sending> sends;
  uint64_t next_send = 1;
};

// Everything that touches UCX; runs on one thread of its own.
class UcxWorker {
 public:
  // A landing in a task, which must be copyable.
  using SharedLanding = std::shared_ptr<std::unique_ptr<Landing>>;

  UcxWorker(const UcxEngine::Options& options, std::shared_ptr<UcxLoopSide> loop_side)
      : options_(options), loop_side_(std::move(loop_side)) {}
  ~UcxWorker();

  // Sets UCX up and starts the thread.
  absl::Status Init();

  const std::string& address() const { return address_; }
  const std::string& transport() const { return transport_; }
  PeerId NewPeer() { return next_peer_.fetch_add(1); }

  // Runs `command` on the thread.
  void Post(std::function<void()> command);

  // Commands; on the thread.
  void Connect(PeerId peer, const std::string& raw_address);
  void Send(PeerId peer, uint64_t send, const std::string& header,
            std::vector<std::span<const std::byte>> payload);
  void Close(PeerId peer);
  // Where an arrival goes; null: nowhere.
  void Land(PeerId peer, uint64_t message, SharedLanding landing);

 private:
  // Messages of one connection that the loop has not looked at yet.
  struct Waiting {
    std::atomic<size_t> bytes = 0;
    std::atomic<size_t> messages = 0;
  };

  // A message to a peer.
  struct Outgoing {
    uint64_t send = 0;
    std::vector<std::span<const std::byte>> payload;
    size_t bytes = 0;
    size_t next = 0;       // First byte that is not yet in a chunk,
    size_t part = 0;       // which is in this part
    size_t part_from = 0;  // at this offset.
    int in_ucx = 0;        // Operations that may read the payload.
    bool complete = false;
  };

  // A message whose payload was offered to us.
  struct Incoming {
    std::string header;
    size_t bytes = 0;
    size_t landed = 0;
    std::unique_ptr<Landing> landing;  // Null until the loop has accepted it.
  };

  struct Link {
    UcxWorker* worker = nullptr;
    PeerId peer = 0;
    uint64_t id = 0;
    bool connector = false;
    ucp_ep_h ep = nullptr;
    bool dead = false;     // UCX has reported an error on the endpoint.
    bool closing = false;  // Forgotten by the loop; what UCX holds drains.
    std::chrono::steady_clock::time_point drained_by;
    bool forced = false;
    bool closed = false;   // UCX is through with the endpoint.
    int operations = 0;    // In UCX.
    int chunks = 0;        // Of those.
    absl::Status failure;  // Why it is going down, unless by our own Close.
    std::map<uint64_t, std::unique_ptr<Outgoing>> outgoing;  // By message.
    std::deque<uint64_t> accepted;                           // Of outgoing, with bytes to send.
    std::map<uint64_t, Incoming> incoming;                   // By message.
    std::shared_ptr<Waiting> waiting = std::make_shared<Waiting>();
  };

  // What UCX reads until it calls back.
  struct Operation {
    Link* link = nullptr;
    uint64_t message = 0;  // Of link->outgoing; 0: none.
    bool chunk = false;
    std::string header;
    std::string body;  // That `iov` points to, when it is our own.
    std::vector<ucp_dt_iov_t> iov;
  };

  static ucs_status_t OnActiveMessage(void* arg, const void* header, size_t header_bytes,
                                      void* data, size_t bytes, const ucp_am_recv_param_t* param);
  static void OnEndpointError(void* arg, ucp_ep_h ep, ucs_status_t status);

  void Run();
  // True when it should be called again soon, whatever happens.
  bool ProgressAll();
  bool RunCommands();
  absl::Status FindTransport(const std::string& raw_address);
  ucs_status_t CreateEndpoint(const std::string& raw_address, Link& link);
  // Without peer errors UCX refuses to close by force.
  uint32_t CloseFlags() const { return options_.reports_dead_peers ? UCP_EP_CLOSE_FLAG_FORCE : 0; }
  Link* AddLink(PeerId peer, uint64_t id, bool connector);
  void ConnectBack(PeerId peer, const std::string& raw_address);
  void OnHello(const LinkHeader& header, const void* data, size_t bytes);
  std::unique_ptr<Operation> NewOperation(Link& link, Kind kind, uint64_t message, uint64_t value,
                                          std::string_view header = {});
  void Start(std::unique_ptr<Operation> operation);
  void OnDone(std::unique_ptr<Operation> operation, ucs_status_t status);
  void SendChunks(Link& link);
  void EndOutgoing(Link& link, uint64_t message, absl::Status status);
  void OnOffer(Link& link, const LinkHeader& header, std::string user_header);
  void OnAnswer(Link& link, const LinkHeader& header);
  void OnChunk(Link& link, const LinkHeader& header, const void* data, size_t bytes);
  void OnFinish(Link& link, const LinkHeader& header);
  void FailLink(Link& link, absl::Status reason);
  void ReportSent(uint64_t send, absl::Status status);
  void BeginClose(Link& link);
  void ForceClose(Link& link);
  // Moves closing connections on. True when some still drain.
  bool Reap();
  void Announce(Link& link, std::string header, uint64_t message, size_t payload_bytes,
                std::shared_ptr<std::vector<std::byte>> payload);

  const UcxEngine::Options options_;
  const std::shared_ptr<UcxLoopSide> loop_side_;
  std::atomic<PeerId> next_peer_ = 1;
  std::string address_;
  std::string transport_;

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int worker_fd_ = -1;
  int wake_fd_ = -1;
  std::thread thread_;

  Mutex mu_;
  std::vector<std::function<void()>> commands_ LYNX_GUARDED_BY(mu_);
  bool stopping_ LYNX_GUARDED_BY(mu_) = false;

  // The thread's own.
  std::map<PeerId, std::unique_ptr<Link>> links_;    // Open and closing.
  std::map<std::pair<uint64_t, bool>, Link*> open_;  // By link id and connector.
  std::vector<PeerId> failed_;
  std::set<PeerId> to_pump_;                                     // Have room for chunks.
  std::vector<std::pair<PeerId, uint64_t>> to_finish_;           // Peer and message.
  std::vector<std::pair<PeerId, std::string>> to_connect_back_;  // With UCX's address.
  uint64_t next_message_ = 1;
};

absl::Status UcxWorker::Init() {
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return FromUcs(status, "UCX configuration");
  const auto set = [&](const char* name, const std::string& value) {
    if (!value.empty() && status == UCS_OK) status = ucp_config_modify(config, name, value.c_str());
  };
  set("TLS", options_.transports);
  set("NET_DEVICES", options_.net_devices);
  // A chunk then is one message of the transport. The environment has the last word.
  if (options_.reports_dead_peers) {
    for (const char* name : {"TX_SEG_SIZE", "RX_SEG_SIZE"}) {
      if (std::getenv(absl::StrCat("UCX_TCP_", name).c_str()) == nullptr) set(name, kSegment);
    }
  } else {
    set("SEG_SIZE", kSegment);  // Of shared memory.
  }
  // Not every transport has those two, and UCX would say so on standard output.
  set("WARN_INVALID_CONFIG", "n");
  if (status != UCS_OK) {
    ucp_config_release(config);
    return FromUcs(status, "UCX configuration");
  }
  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.name = "lynx";
  status = ucp_init(&params, config, &context_);
  ucp_config_release(config);
  if (status == UCS_ERR_NO_DEVICE) {
    return absl::InvalidArgumentError(absl::StrCat("UCX has no device for transports '",
                                                   options_.transports, "' on '",
                                                   options_.net_devices, "'"));
  }
  if (status != UCS_OK) return FromUcs(status, "UCX start");

  ucp_worker_params_t worker_params = {};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  status = ucp_worker_create(context_, &worker_params, &worker_);
  if (status != UCS_OK) return FromUcs(status, "UCX worker");

  ucp_worker_attr_t attributes = {};
  attributes.field_mask = UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER | UCP_WORKER_ATTR_FIELD_ADDRESS;
  status = ucp_worker_query(worker_, &attributes);
  if (status != UCS_OK) return FromUcs(status, "UCX worker query");
  const std::string raw(reinterpret_cast<const char*>(attributes.address),
                        attributes.address_length);
  ucp_worker_release_address(worker_, attributes.address);
  address_ = WrapAddress(raw);
  if (attributes.max_am_header < kMaxHeaderBytes + sizeof(LinkHeader)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "headers on UCX transports '", options_.transports, "' have at most ",
        attributes.max_am_header, " bytes, ", kMaxHeaderBytes + sizeof(LinkHeader), " are needed"));
  }

  ucp_am_handler_param_t handler = {};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
  handler.id = kAmId;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.cb = &UcxWorker::OnActiveMessage;
  handler.arg = this;
  status = ucp_worker_set_am_recv_handler(worker_, &handler);
  if (status != UCS_OK) return FromUcs(status, "UCX message handler");
  status = ucp_worker_get_efd(worker_, &worker_fd_);
  if (status != UCS_OK) return FromUcs(status, "UCX event descriptor");
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd_ < 0) {
    return absl::UnavailableError(absl::StrCat("eventfd: ", std::strerror(errno)));
  }
  LYNX_RETURN_IF_ERROR(FindTransport(raw));
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

// An endpoint to ourselves shows what UCX picks, and whether it can report dead peers.
absl::Status UcxWorker::FindTransport(const std::string& raw_address) {
  Link probe;
  probe.worker = this;
  const ucs_status_t status = CreateEndpoint(raw_address, probe);
  if (status != UCS_OK) {
    return absl::FailedPreconditionError(
        absl::StrCat("UCX transports '", options_.transports,
                     "' give no connection that reports a dead peer: ", ucs_status_string(status)));
  }
  char* text = nullptr;
  size_t size = 0;
  if (FILE* stream = open_memstream(&text, &size); stream != nullptr) {
    ucp_ep_print_info(probe.ep, stream);
    std::fclose(stream);
    transport_ = TransportOf({text, size});
    std::free(text);
  }
  ucp_request_param_t close = {};
  close.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  close.flags = CloseFlags();
  ucs_status_ptr_t request = ucp_ep_close_nbx(probe.ep, &close);
  if (UCS_PTR_IS_PTR(request)) {
    const auto give_up = std::chrono::steady_clock::now() + kDestructionTimeout;
    while (ucp_request_check_status(request) == UCS_INPROGRESS &&
           std::chrono::steady_clock::now() < give_up) {
      ucp_worker_progress(worker_);
    }
    ucp_request_free(request);
  }
  return absl::OkStatus();
}

UcxWorker::~UcxWorker() {
  if (thread_.joinable()) {
    {
      MutexLock lock(mu_);
      stopping_ = true;
    }
    Post([] {});
    thread_.join();
  }
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucp_cleanup(context_);
  if (wake_fd_ >= 0) close(wake_fd_);
}

void UcxWorker::Post(std::function<void()> command) {
  {
    MutexLock lock(mu_);
    commands_.push_back(std::move(command));
  }
  const uint64_t one = 1;
  // Cannot fail but by overflow, and then the thread is awake anyway.
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof(one));
}

bool UcxWorker::RunCommands() {
  std::vector<std::function<void()>> commands;
  bool stopping = false;
  {
    MutexLock lock(mu_);
    commands.swap(commands_);
    stopping = stopping_;
  }
  for (auto& command : commands) command();
  return !stopping;
}

bool UcxWorker::ProgressAll() {
  while (ucp_worker_progress(worker_) != 0) {
  }
  // Endpoints are made and closed outside of UCX's callbacks: it may be in the middle of a batch of
  // events that name them.
  for (const auto& [peer, raw_address] : std::exchange(to_connect_back_, {})) {
    ConnectBack(peer, raw_address);
  }
  for (const auto& [peer, message] : std::exchange(to_finish_, {})) {
    auto it = links_.find(peer);
    if (it == links_.end() || it->second->closing || it->second->ep == nullptr) continue;
    Start(NewOperation(*it->second, kFinish, message, 0));
  }
  for (PeerId peer : std::exchange(to_pump_, {})) {
    auto it = links_.find(peer);
    if (it != links_.end()) SendChunks(*it->second);
  }
  for (PeerId peer : std::exchange(failed_, {})) {
    auto it = links_.find(peer);
    if (it == links_.end() || it->second->closing) continue;
    Link& link = *it->second;
    const absl::Status reason = link.failure;
    BeginClose(link);
    loop_side_->loop.Post([side = loop_side_, peer, reason] {
      if (side->peers.erase(peer) > 0) side->receiver->OnPeerDown(peer, reason);
    });
  }
  return Reap();
}

void UcxWorker::Run() {
  pollfd fds[2] = {{wake_fd_, POLLIN, 0}, {worker_fd_, POLLIN, 0}};
  for (;;) {
    uint64_t ignored = 0;
    [[maybe_unused]] const ssize_t got = read(wake_fd_, &ignored, sizeof(ignored));
    if (!RunCommands()) break;
    const bool soon = ProgressAll();
    const ucs_status_t armed = ucp_worker_arm(worker_);
    if (armed == UCS_ERR_BUSY) continue;
    LYNX_CHECK_MSG(armed == UCS_OK, ucs_status_string(armed));
    while (poll(fds, 2, soon ? kDrainPollMs : -1) < 0) LYNX_CHECK(errno == EINTR);
  }
  for (auto& [peer, link] : links_) BeginClose(*link);
  const auto give_up = std::chrono::steady_clock::now() + kDestructionTimeout;
  while (!links_.empty() && std::chrono::steady_clock::now() < give_up) ProgressAll();
  // UCX aborts when its worker is destroyed with its own connection messages unsent.
  ucp_request_param_t param = {};
  ucs_status_ptr_t flush = ucp_worker_flush_nbx(worker_, &param);
  const auto settled = std::chrono::steady_clock::now() + kSettleTime;
  bool flushing = UCS_PTR_IS_PTR(flush);
  for (;;) {
    const bool busy = ucp_worker_progress(worker_) != 0;
    const auto now = std::chrono::steady_clock::now();
    if (flushing && ucp_request_check_status(flush) != UCS_INPROGRESS) {
      ucp_request_free(flush);
      flushing = false;
    }
    if (now >= give_up || (!flushing && !busy && now >= settled)) break;
    std::this_thread::yield();
  }
  if (flushing) ucp_request_free(flush);
  if (!links_.empty()) {
    telemetry::LogError("UCX did not let go of connections in time",
                        {{"connections", absl::StrCat(links_.size())}});
  }
}

ucs_status_t UcxWorker::CreateEndpoint(const std::string& raw_address, Link& link) {
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(raw_address.data());
  params.err_mode =
      options_.reports_dead_peers ? UCP_ERR_HANDLING_MODE_PEER : UCP_ERR_HANDLING_MODE_NONE;
  params.err_handler.cb = &UcxWorker::OnEndpointError;
  params.err_handler.arg = &link;
  return ucp_ep_create(worker_, &params, &link.ep);
}

UcxWorker::Link* UcxWorker::AddLink(PeerId peer, uint64_t id, bool connector) {
  auto link = std::make_unique<Link>();
  link->worker = this;
  link->peer = peer;
  link->id = id;
  link->connector = connector;
  open_[{id, connector}] = link.get();
  return (links_[peer] = std::move(link)).get();
}

void UcxWorker::Connect(PeerId peer, const std::string& raw_address) {
  Link* link = AddLink(peer, RandomId(), /*connector=*/true);
  const ucs_status_t status = CreateEndpoint(raw_address, *link);
  if (status != UCS_OK) {
    link->ep = nullptr;
    link->failure =
        absl::UnavailableError(absl::StrCat("UCX cannot connect: ", ucs_status_string(status)));
    failed_.push_back(peer);
    return;
  }
  auto hello = NewOperation(*link, kHello, 0, 0);
  hello->body = address_;
  hello->iov.push_back({hello->body.data(), hello->body.size()});
  Start(std::move(hello));
}

void UcxWorker::OnHello(const LinkHeader& header, const void* data, size_t bytes) {
  const std::optional<std::string> raw =
      UnwrapAddress({static_cast<const char*>(data), data == nullptr ? 0 : bytes});
  if (!raw.has_value() || open_.contains({header.link, false}) || links_.size() >= kMaxLinks) {
    telemetry::LogWarning("refused a transfer connection",
                          {{"connections", absl::StrCat(links_.size())}});
    return;
  }
  const PeerId peer = NewPeer();
  AddLink(peer, header.link, /*connector=*/false);
  to_connect_back_.emplace_back(peer, *raw);
  loop_side_->loop.Post([side = loop_side_, peer] {
    if (side->receiver != nullptr) side->peers.insert(peer);
  });
}

void UcxWorker::ConnectBack(PeerId peer, const std::string& raw_address) {
  auto it = links_.find(peer);
  if (it == links_.end() || it->second->closing) return;
  Link& link = *it->second;
  const ucs_status_t status = CreateEndpoint(raw_address, link);
  if (status != UCS_OK) {
    link.ep = nullptr;
    link.failure = absl::UnavailableError(
        absl::StrCat("UCX cannot connect back: ", ucs_status_string(status)));
    failed_.push_back(peer);
  }
}

void UcxWorker::FailLink(Link& link, absl::Status reason) {
  if (link.closing || !link.failure.ok()) return;
  link.failure = std::move(reason);
  failed_.push_back(link.peer);
}

void UcxWorker::OnEndpointError(void* arg, ucp_ep_h, ucs_status_t status) {
  Link& link = *static_cast<Link*>(arg);
  if (link.peer == 0) return;  // The probe.
  link.dead = true;
  link.worker->FailLink(link,
                        absl::UnavailableError(absl::StrCat("UCX: ", ucs_status_string(status))));
}

void UcxWorker::Send(PeerId peer, uint64_t send, const std::string& header,
                     std::vector<std::span<const std::byte>> payload) {
  auto it = links_.find(peer);
  if (it == links_.end() || it->second->closing || it->second->ep == nullptr ||
      !it->second->failure.ok()) {
    ReportSent(send, absl::UnavailableError("the peer is gone"));
    return;
  }
  Link& link = *it->second;
  const uint64_t message = next_message_++;
  Outgoing& outgoing = *(link.outgoing[message] = std::make_unique<Outgoing>());
  outgoing.send = send;
  outgoing.payload = std::move(payload);
  for (std::span<const std::byte> part : outgoing.payload) outgoing.bytes += part.size();
  if (outgoing.bytes > kInlineBytes) {
    Start(NewOperation(link, kOffer, message, outgoing.bytes, header));
    return;
  }
  auto operation = NewOperation(link, kInline, message, outgoing.bytes, header);
  for (std::span<const std::byte> part : outgoing.payload) {
    if (part.empty()) continue;
    operation->iov.push_back({const_cast<std::byte*>(part.data()), part.size()});
  }
  operation->message = message;
  outgoing.in_ucx = 1;
  outgoing.complete = true;
  Start(std::move(operation));
}

std::unique_ptr<UcxWorker::Operation> UcxWorker::NewOperation(Link& link, Kind kind,
                                                              uint64_t message, uint64_t value,
                                                              std::string_view header) {
  auto operation = std::make_unique<Operation>();
  operation->link = &link;
  const LinkHeader link_header = {kind, link.connector ? 1u : 0u, link.id, message, value};
  operation->header.reserve(sizeof(link_header) + header.size());
  operation->header.assign(reinterpret_cast<const char*>(&link_header), sizeof(link_header));
  operation->header.append(header);
  return operation;
}

void UcxWorker::Start(std::unique_ptr<Operation> operation) {
  // Always eager: UCX's own rendezvous answers on an endpoint that is not ours to close, so that
  // its receives could not be ended, and its worker not be destroyed, under a stuck peer.
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                       UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_DATATYPE;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = [](void* request, ucs_status_t status, void* user_data) {
    std::unique_ptr<Operation> done(static_cast<Operation*>(user_data));
    ucp_request_free(request);
    UcxWorker& worker = *done->link->worker;
    worker.OnDone(std::move(done), status);
  };
  const void* buffer = nullptr;
  size_t count = 0;
  if (operation->iov.size() > 1) {
    param.datatype = ucp_dt_make_iov();
    buffer = operation->iov.data();
    count = operation->iov.size();
  } else {
    param.datatype = ucp_dt_make_contig(1);
    if (!operation->iov.empty()) {
      buffer = operation->iov[0].buffer;
      count = operation->iov[0].length;
    }
  }
  Operation* raw = operation.release();
  param.user_data = raw;
  raw->link->operations += 1;
  raw->link->chunks += raw->chunk;
  ucs_status_ptr_t request = ucp_am_send_nbx(raw->link->ep, kAmId, raw->header.data(),
                                             raw->header.size(), buffer, count, &param);
  if (UCS_PTR_IS_PTR(request)) return;
  OnDone(std::unique_ptr<Operation>(raw), UCS_PTR_STATUS(request));
}

void UcxWorker::OnDone(std::unique_ptr<Operation> operation, ucs_status_t status) {
  Link& link = *operation->link;
  link.operations -= 1;
  link.chunks -= operation->chunk;
  if (status != UCS_OK && !link.closing) {
    FailLink(link, absl::UnavailableError(absl::StrCat("UCX: ", ucs_status_string(status))));
  }
  if (operation->chunk && !link.closing && link.failure.ok()) to_pump_.insert(link.peer);
  auto it = link.outgoing.find(operation->message);
  if (it == link.outgoing.end()) return;
  it->second->in_ucx -= 1;
  if (it->second->in_ucx > 0) return;
  if (link.closing) {
    EndOutgoing(
        link, it->first,
        link.failure.ok() ? absl::CancelledError("the connection was closed") : link.failure);
  } else if (it->second->complete && link.failure.ok()) {
    EndOutgoing(link, it->first, absl::OkStatus());
  }
}

void UcxWorker::SendChunks(Link& link) {
  while (!link.closing && link.failure.ok() && link.chunks < kMaxChunks && !link.accepted.empty()) {
    const uint64_t message = link.accepted.front();
    auto it = link.outgoing.find(message);
    if (it == link.outgoing.end()) {
      link.accepted.pop_front();
      continue;
    }
    Outgoing& outgoing = *it->second;
    auto operation = NewOperation(link, kChunk, message, outgoing.next);
    operation->chunk = true;
    operation->message = message;
    size_t room = kChunkBytes;
    while (room > 0 && outgoing.next < outgoing.bytes) {
      const std::span<const std::byte> rest =
          outgoing.payload[outgoing.part].subspan(outgoing.part_from);
      const size_t bytes = std::min(room, rest.size());
      if (bytes > 0) operation->iov.push_back({const_cast<std::byte*>(rest.data()), bytes});
      room -= bytes;
      outgoing.next += bytes;
      outgoing.part_from += bytes;
      if (bytes == rest.size()) {
        outgoing.part += 1;
        outgoing.part_from = 0;
      }
    }
    outgoing.in_ucx += 1;
    if (outgoing.next == outgoing.bytes) link.accepted.pop_front();
    Start(std::move(operation));
  }
}

void UcxWorker::EndOutgoing(Link& link, uint64_t message, absl::Status status) {
  auto node = link.outgoing.extract(message);
  ReportSent(node.mapped()->send, std::move(status));
}

void UcxWorker::ReportSent(uint64_t send, absl::Status status) {
  loop_side_->loop.Post(
      [side = loop_side_, send, status = std::move(status)] { side->OnSent(send, status); });
}

ucs_status_t UcxWorker::OnActiveMessage(void* arg, const void* header, size_t header_bytes,
                                        void* data, size_t bytes,
                                        const ucp_am_recv_param_t* param) {
  UcxWorker& self = *static_cast<UcxWorker*>(arg);
  LinkHeader link_header;
  // We send nothing by UCX's rendezvous, and longer headers than ours are not ours.
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0 || header_bytes < sizeof(link_header) ||
      header_bytes > sizeof(link_header) + kMaxHeaderBytes) {
    return UCS_OK;
  }
  std::memcpy(&link_header, header, sizeof(link_header));
  if (link_header.kind == kHello) {
    self.OnHello(link_header, data, bytes);
    return UCS_OK;
  }
  // Closed, or never opened: dropped.
  auto it = self.open_.find({link_header.link, link_header.from_connector == 0});
  if (it == self.open_.end() || !it->second->failure.ok()) return UCS_OK;
  Link& link = *it->second;
  std::string user_header(static_cast<const char*>(header) + sizeof(link_header),
                          header_bytes - sizeof(link_header));
  switch (link_header.kind) {
    case kBye:
      self.FailLink(link, absl::CancelledError("the peer closed"));
      break;
    case kInline: {
      const auto* from = static_cast<const std::byte*>(data);
      self.Announce(link, std::move(user_header), 0, bytes,
                    std::make_shared<std::vector<std::byte>>(from, from + bytes));
      break;
    }
    case kOffer:
      self.OnOffer(link, link_header, std::move(user_header));
      break;
    case kAnswer:
      self.OnAnswer(link, link_header);
      break;
    case kChunk:
      self.OnChunk(link, link_header, data, bytes);
      break;
    case kFinish:
      self.OnFinish(link, link_header);
      break;
    default:
      self.FailLink(link, absl::UnavailableError("the peer speaks another protocol"));
  }
  return UCS_OK;
}

void UcxWorker::OnOffer(Link& link, const LinkHeader& header, std::string user_header) {
  if (header.value == 0 || link.incoming.contains(header.message)) {
    FailLink(link, absl::UnavailableError("the peer offered a payload twice, or none"));
    return;
  }
  Incoming& incoming = link.incoming[header.message];
  incoming.header = user_header;
  incoming.bytes = header.value;
  Announce(link, std::move(user_header), header.message, header.value, nullptr);
}

void UcxWorker::Land(PeerId peer, uint64_t message, SharedLanding landing) {
  auto link_it = links_.find(peer);
  if (link_it == links_.end() || link_it->second->closing || link_it->second->ep == nullptr) return;
  Link& link = *link_it->second;
  auto it = link.incoming.find(message);
  if (it == link.incoming.end()) return;
  const bool accepted = *landing != nullptr;
  if (accepted) {
    it->second.landing = std::move(*landing);
  } else {
    link.incoming.erase(it);
  }
  Start(NewOperation(link, kAnswer, message, accepted ? 1 : 0));
}

void UcxWorker::OnAnswer(Link& link, const LinkHeader& header) {
  auto it = link.outgoing.find(header.message);
  // One answer an offer.
  if (it == link.outgoing.end() || it->second->complete || it->second->next > 0) return;
  if (header.value == 0) {
    EndOutgoing(link, header.message, absl::OkStatus());
    return;
  }
  if (std::find(link.accepted.begin(), link.accepted.end(), header.message) ==
      link.accepted.end()) {
    link.accepted.push_back(header.message);
  }
  to_pump_.insert(link.peer);
}

void UcxWorker::OnChunk(Link& link, const LinkHeader& header, const void* data, size_t bytes) {
  auto it = link.incoming.find(header.message);
  if (it == link.incoming.end()) return;
  Incoming& incoming = it->second;
  if (incoming.landing == nullptr || header.value > incoming.bytes ||
      bytes > incoming.bytes - header.value || bytes > incoming.bytes - incoming.landed) {
    FailLink(link, absl::UnavailableError("the peer sent bytes that it had not offered"));
    return;
  }
  std::memcpy(incoming.landing->bytes().data() + header.value, data, bytes);
  incoming.landed += bytes;
  if (incoming.landed < incoming.bytes) return;
  // The task must be copyable; it alone holds the landing.
  auto landing = std::make_shared<std::unique_ptr<Landing>>(std::move(incoming.landing));
  loop_side_->loop.Post(
      [side = loop_side_, peer = link.peer, header = std::move(incoming.header), landing] {
        if (!side->peers.contains(peer)) return;
        side->receiver->OnPayload(peer, std::as_bytes(std::span(header)), std::move(*landing));
      });
  link.incoming.erase(it);
  to_finish_.emplace_back(link.peer, header.message);
}

void UcxWorker::OnFinish(Link& link, const LinkHeader& header) {
  auto it = link.outgoing.find(header.message);
  if (it == link.outgoing.end() || it->second->next < it->second->bytes) return;
  it->second->complete = true;
  if (it->second->in_ucx == 0) EndOutgoing(link, header.message, absl::OkStatus());
}

void UcxWorker::Announce(Link& link, std::string header, uint64_t message, size_t payload_bytes,
                         std::shared_ptr<std::vector<std::byte>> payload) {
  const size_t held = payload == nullptr ? 0 : payload->size();
  if (link.waiting->messages >= kMaxWaitingMessages ||
      link.waiting->bytes + held > kMaxWaitingBytes) {
    FailLink(link, absl::ResourceExhaustedError("the peer sends faster than this node can take"));
    return;
  }
  link.waiting->messages += 1;
  link.waiting->bytes += held;
  loop_side_->loop.Post([this, side = loop_side_, peer = link.peer, waiting = link.waiting, held,
                         header = std::move(header), message, payload_bytes,
                         payload = std::move(payload)] {
    waiting->messages -= 1;
    waiting->bytes -= held;
    // Not in `peers`: closed or down, perhaps with the engine; `this` may be gone.
    if (!side->peers.contains(peer)) return;
    const auto head = std::as_bytes(std::span(header));
    std::unique_ptr<Landing> landing = side->receiver->OnMessage(peer, head, payload_bytes);
    if (!side->peers.contains(peer)) return;
    if (payload_bytes == 0) return;
    if (landing != nullptr) LYNX_CHECK(landing->bytes().size() == payload_bytes);
    if (payload == nullptr) {
      Post([this, peer, message,
            shared = std::make_shared<std::unique_ptr<Landing>>(std::move(landing))] {
        Land(peer, message, shared);
      });
    } else if (landing != nullptr) {
      std::memcpy(landing->bytes().data(), payload->data(), payload_bytes);
      side->receiver->OnPayload(peer, head, std::move(landing));
    }
  });
}

void UcxWorker::Close(PeerId peer) {
  auto it = links_.find(peer);
  if (it != links_.end()) BeginClose(*it->second);
}

void UcxWorker::BeginClose(Link& link) {
  if (link.closing) return;
  link.closing = true;
  open_.erase({link.id, link.connector});
  // Only our own code writes into landings, and from now on finds none.
  link.incoming.clear();
  std::vector<uint64_t> idle;
  for (const auto& [message, outgoing] : link.outgoing) {
    if (outgoing->in_ucx == 0) idle.push_back(message);
  }
  for (uint64_t message : idle) {
    EndOutgoing(
        link, message,
        link.failure.ok() ? absl::CancelledError("the connection was closed") : link.failure);
  }
  if (link.ep == nullptr) {
    link.closed = true;
    return;
  }
  link.drained_by = std::chrono::steady_clock::now() + kDrainTimeout;
  // UCX does not tell a live peer, whose own endpoint is untouched.
  if (link.failure.ok()) {
    Start(NewOperation(link, kBye, 0, 0));
  }
}

void UcxWorker::ForceClose(Link& link) {
  link.forced = true;
  ucp_request_param_t param = {};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.flags = CloseFlags();
  param.user_data = &link;
  param.cb.send = [](void* request, ucs_status_t, void* user_data) {
    ucp_request_free(request);
    static_cast<Link*>(user_data)->closed = true;
  };
  ucs_status_ptr_t request = ucp_ep_close_nbx(link.ep, &param);
  if (!UCS_PTR_IS_PTR(request)) link.closed = true;
}

bool UcxWorker::Reap() {
  bool draining = false;
  const auto now = std::chrono::steady_clock::now();
  for (auto& [peer, link] : links_) {
    if (!link->closing || link->closed || link->forced) continue;
    if (link->operations == 0 || link->dead || now >= link->drained_by) {
      ForceClose(*link);
    } else {
      draining = true;
    }
  }
  std::erase_if(links_, [](const auto& entry) {
    return entry.second->closed && entry.second->operations == 0;
  });
  return draining;
}

}  // namespace internal

using internal::UcxLoopSide;
using internal::UcxWorker;

absl::StatusOr<std::unique_ptr<UcxEngine>> UcxEngine::Create(const Options& options,
                                                             EventLoop& loop) {
  auto side = std::make_shared<UcxLoopSide>(loop);
  auto worker = std::make_unique<UcxWorker>(options, side);
  LYNX_RETURN_IF_ERROR(worker->Init());
  return std::unique_ptr<UcxEngine>(new UcxEngine(std::move(side), std::move(worker)));
}

UcxEngine::UcxEngine(std::shared_ptr<UcxLoopSide> loop_side, std::unique_ptr<UcxWorker> worker)
    : loop_side_(std::move(loop_side)), worker_(std::move(worker)) {}

UcxEngine::~UcxEngine() {
  loop_side_->receiver = nullptr;
  loop_side_->peers.clear();
  loop_side_->sends.clear();
}

void UcxEngine::Start(Receiver& receiver) { loop_side_->receiver = &receiver; }

std::string UcxEngine::LocalAddress() const { return worker_->address(); }

std::string UcxEngine::TransportName() const { return worker_->transport(); }

absl::StatusOr<PeerId> UcxEngine::Connect(const std::string& address) {
  std::optional<std::string> raw = internal::UnwrapAddress(address);
  if (!raw.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("not a UCX transfer address (", address.size(), " bytes)"));
  }
  const PeerId peer = worker_->NewPeer();
  loop_side_->peers.insert(peer);
  worker_->Post(
      [worker = worker_.get(), peer, raw = *std::move(raw)] { worker->Connect(peer, raw); });
  return peer;
}

void UcxEngine::Send(PeerId peer, std::string header,
                     std::vector<std::span<const std::byte>> payload, SendDone done) {
  const uint64_t send = loop_side_->next_send++;
  loop_side_->sends[send] = {peer, std::move(done)};
  absl::Status refusal;
  if (header.size() > kMaxHeaderBytes) {
    refusal = absl::InvalidArgumentError(
        absl::StrCat("a header of ", header.size(), " bytes; the limit is ", kMaxHeaderBytes));
  } else if (!loop_side_->peers.contains(peer)) {
    refusal = absl::UnavailableError("the peer is gone");
  }
  if (!refusal.ok()) {
    loop_side_->loop.Post([side = loop_side_, send, refusal] { side->OnSent(send, refusal); });
    return;
  }
  worker_->Post([worker = worker_.get(), peer, send, header = std::move(header),
                 payload = std::move(payload)]() mutable {
    worker->Send(peer, send, header, std::move(payload));
  });
}

void UcxEngine::Close(PeerId peer) {
  if (loop_side_->peers.erase(peer) == 0) return;
  worker_->Post([worker = worker_.get(), peer] { worker->Close(peer); });
}

}  // namespace lynx::transfer
