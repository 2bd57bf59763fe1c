#include "tests/support/transfer_endpoint.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace lynx::testing {

using transfer::Landing;
using transfer::PeerId;

class TransferEndpoint::VectorLanding final : public Landing {
 public:
  VectorLanding(std::shared_ptr<Counters> counters, std::unique_ptr<std::byte[]> memory,
                size_t bytes)
      : Landing({memory.get(), bytes}), counters_(std::move(counters)), memory_(std::move(memory)) {
    MutexLock lock(counters_->mu);
    ++counters_->landings;
  }
  ~VectorLanding() override {
    MutexLock lock(counters_->mu);
    --counters_->landings;
    counters_->changed.NotifyAll();
  }

 private:
  const std::shared_ptr<Counters> counters_;
  const std::unique_ptr<std::byte[]> memory_;
};

TransferEndpoint::TransferEndpoint(ThreadEventLoop& loop, const MakeEngine& make_engine)
    : loop_(loop) {
  loop_.RunAndWait([&] {
    engine_ = make_engine(loop_);
    engine_->Start(*this);
    address_ = engine_->LocalAddress();
  });
}

TransferEndpoint::~TransferEndpoint() {
  loop_.RunAndWait([&] { engine_.reset(); });
}

PeerId TransferEndpoint::Connect(const TransferEndpoint& other) {
  return ConnectTo(other.address());
}

PeerId TransferEndpoint::ConnectTo(const std::string& address) {
  PeerId peer = 0;
  loop_.RunAndWait([&] { peer = engine_->Connect(address).value(); });
  return peer;
}

absl::Status TransferEndpoint::TryConnect(const std::string& address) {
  absl::Status status;
  loop_.RunAndWait([&] { status = engine_->Connect(address).status(); });
  return status;
}

void TransferEndpoint::Close(PeerId peer) {
  loop_.RunAndWait([&] { engine_->Close(peer); });
}

void TransferEndpoint::Send(PeerId peer, std::string header,
                            std::vector<std::span<const std::byte>> payload) {
  {
    MutexLock lock(counters_->mu);
    ++counters_->sends_begun;
  }
  loop_.RunAndWait([&] {
    engine_->Send(peer, std::move(header), std::move(payload),
                  [counters = counters_](const absl::Status& status) {
                    MutexLock lock(counters->mu);
                    counters->sends_ended.push_back(status);
                    counters->changed.NotifyAll();
                  });
  });
}

absl::Status TransferEndpoint::SendAndWait(PeerId peer, std::string header,
                                           std::vector<std::span<const std::byte>> payload) {
  Send(peer, std::move(header), std::move(payload));
  const std::vector<absl::Status> results = send_results();
  return results.empty() ? absl::UnknownError("the send did not end") : results.back();
}

std::vector<absl::Status> TransferEndpoint::send_results() {
  WaitUntil(
      [this] { return static_cast<int>(counters_->sends_ended.size()) == counters_->sends_begun; });
  MutexLock lock(counters_->mu);
  counters_->sends_begun = 0;
  return std::exchange(counters_->sends_ended, {});
}

int TransferEndpoint::WaitForSends() { return static_cast<int>(send_results().size()); }

std::vector<TransferEndpoint::Message> TransferEndpoint::WaitForMessages(size_t count) {
  WaitUntil([&] { return counters_->messages.size() >= count; });
  MutexLock lock(counters_->mu);
  auto& all = counters_->messages;
  const auto end =
      all.begin() + static_cast<std::ptrdiff_t>(std::min(count, counters_->messages.size()));
  std::vector<Message> taken(std::make_move_iterator(all.begin()), std::make_move_iterator(end));
  all.erase(all.begin(), end);
  return taken;
}

std::vector<PeerId> TransferEndpoint::WaitForDown(size_t count) {
  WaitUntil([&] { return counters_->down.size() >= count; });
  MutexLock lock(counters_->mu);
  return std::exchange(counters_->down, {});
}

absl::Status TransferEndpoint::last_down_reason() {
  MutexLock lock(counters_->mu);
  return counters_->down_reason;
}

std::vector<PeerId> TransferEndpoint::down() {
  MutexLock lock(counters_->mu);
  return counters_->down;
}

int TransferEndpoint::WaitForRefused(int count) {
  WaitUntil([&] { return counters_->refused >= count; });
  MutexLock lock(counters_->mu);
  return counters_->refused;
}

void TransferEndpoint::set_refuse(bool refuse) {
  MutexLock lock(counters_->mu);
  counters_->refuse = refuse;
}

std::vector<TransferEndpoint::Message> TransferEndpoint::TakeMessages() {
  MutexLock lock(counters_->mu);
  return std::exchange(counters_->messages, {});
}

int TransferEndpoint::WaitForNoLandings() {
  WaitUntil([this] { return counters_->landings == 0; });
  MutexLock lock(counters_->mu);
  return counters_->landings;
}

void TransferEndpoint::WaitUntil(const std::function<bool()>& ready) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  MutexLock lock(counters_->mu);
  while (!ready() && counters_->changed.WaitUntil(counters_->mu, give_up)) {
  }
}

std::unique_ptr<Landing> TransferEndpoint::OnMessage(PeerId peer, std::span<const std::byte> header,
                                                     size_t payload_bytes) {
  {
    MutexLock lock(counters_->mu);
    if (counters_->refuse) {
      ++counters_->refused;
      counters_->changed.NotifyAll();
      return nullptr;
    }
    if (payload_bytes == 0) {
      counters_->messages.push_back(
          {peer, {reinterpret_cast<const char*>(header.data()), header.size()}, {}});
      counters_->changed.NotifyAll();
      return nullptr;
    }
  }
  return std::make_unique<VectorLanding>(counters_, std::make_unique<std::byte[]>(payload_bytes),
                                         payload_bytes);
}

void TransferEndpoint::OnPayload(PeerId peer, std::span<const std::byte> header,
                                 std::unique_ptr<Landing> payload) {
  MutexLock lock(counters_->mu);
  counters_->messages.push_back({peer,
                                 {reinterpret_cast<const char*>(header.data()), header.size()},
                                 {payload->bytes().begin(), payload->bytes().end()}});
  counters_->changed.NotifyAll();
}

void TransferEndpoint::OnPeerDown(PeerId peer, const absl::Status& reason) {
  MutexLock lock(counters_->mu);
  counters_->down.push_back(peer);
  counters_->down_reason = reason;
  counters_->changed.NotifyAll();
}

}  // namespace lynx::testing
