#include "services/cli/bench/transfer/prefill_side.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/status_macros.h"
#include "services/cli/bench/transfer/transfer_setup.h"

namespace lynx::cli {
namespace {

constexpr auto kGrantTimeout = std::chrono::seconds(10);
// From the commit on.
constexpr auto kTransferTimeout = std::chrono::seconds(60);
constexpr absl::Duration kLease = absl::Minutes(10);

}  // namespace

// Answers to reservations.
class PrefillSide::Grants final : public rpc::Channel::Handler {
 public:
  using Answer = std::promise<absl::StatusOr<proto::GrantInfo>>;

  void Expect(uint64_t sequence, std::shared_ptr<Answer> answer) {
    waiting_[sequence] = std::move(answer);
  }

  void OnMessage(rpc::PeerId, proto::Envelope envelope) override {
    if (envelope.has_grant()) {
      Fulfil(envelope.grant().sequence(), envelope.grant().grant());
    } else if (envelope.has_refused()) {
      Fulfil(envelope.refused().sequence(),
             absl::UnavailableError(
                 absl::StrCat("the reservation was refused: ", envelope.refused().message())));
    }
  }

 private:
  void Fulfil(uint64_t sequence, absl::StatusOr<proto::GrantInfo> grant) {
    if (auto node = waiting_.extract(sequence)) node.mapped()->set_value(std::move(grant));
  }

  std::map<uint64_t, std::shared_ptr<Answer>> waiting_;
};

struct PrefillSide::Handoff {
  using Outcome = std::pair<absl::Status, absl::Time>;

  uint64_t sequence = 0;
  int32_t prompt_tokens = 0;
  const kv::BlockTable* blocks = nullptr;
  handoff::KvSender::HandoffId id = 0;
  absl::Status pushed;  // The first that went wrong.
  std::shared_ptr<std::promise<Outcome>> outcome = std::make_shared<std::promise<Outcome>>();
};

absl::StatusOr<std::unique_ptr<PrefillSide>> PrefillSide::Start(const Options& options,
                                                                kv::KvArena& arena) {
  std::unique_ptr<PrefillSide> side(new PrefillSide(arena));
  LYNX_ASSIGN_OR_RETURN(side->channel_, rpc::ZmqChannel::Create({}, side->loop_, side->registry_));
  LYNX_ASSIGN_OR_RETURN(std::unique_ptr<transfer::UcxEngine> engine,
                        transfer::UcxEngine::Create(options.engine, side->loop_));
  absl::StatusOr<rpc::PeerId> peer;
  side->loop_.RunAndWait([&] {
    side->grants_ = std::make_unique<Grants>();
    side->channel_->Start(*side->grants_);
    side->sender_ = std::make_unique<handoff::KvSender>(
        side->identity_, arena, std::move(engine), side->loop_, side->registry_, options.sender);
    peer = side->channel_->Connect(options.peer);
  });
  LYNX_RETURN_IF_ERROR(peer.status());
  side->peer_ = *peer;
  return side;
}

PrefillSide::PrefillSide(kv::KvArena& arena)
    : identity_(MakeIdentity(arena.layout())), arena_(arena) {}

PrefillSide::~PrefillSide() {
  loop_.RunAndWait([&] {
    sender_.reset();
    channel_.reset();
  });
  loop_.Stop();
}

absl::StatusOr<proto::GrantInfo> PrefillSide::Reserve(uint64_t sequence, int32_t prompt_tokens) {
  auto answer = std::make_shared<Grants::Answer>();
  auto granted = answer->get_future();
  absl::Status sent;
  loop_.RunAndWait([&] {
    grants_->Expect(sequence, answer);
    proto::Envelope envelope;
    envelope.set_sender(identity_.incarnation);
    envelope.mutable_reserve()->set_sequence(sequence);
    envelope.mutable_reserve()->set_prompt_tokens(prompt_tokens);
    envelope.mutable_reserve()->set_lease_ms(
        static_cast<uint32_t>(absl::ToInt64Milliseconds(kLease)));
    sent = channel_->Send(peer_, std::move(envelope));
  });
  LYNX_RETURN_IF_ERROR(sent);
  if (granted.wait_for(kGrantTimeout) != std::future_status::ready) {
    return absl::DeadlineExceededError("the other process did not answer a reservation in time");
  }
  return granted.get();
}

absl::Status PrefillSide::Open(int32_t prompt_tokens, const kv::BlockTable& blocks) {
  auto handoff = std::make_unique<Handoff>();
  handoff->sequence = RandomId();
  handoff->prompt_tokens = prompt_tokens;
  handoff->blocks = &blocks;
  LYNX_ASSIGN_OR_RETURN(const proto::GrantInfo grant, Reserve(handoff->sequence, prompt_tokens));
  absl::Status begun;
  loop_.RunAndWait([&] {
    const auto id = sender_->Begin(grant, loop_.Now() + kLease,
                                   [outcome = handoff->outcome](const absl::Status& status) {
                                     outcome->set_value({status, SteadyClock::Instance().Now()});
                                   });
    begun = id.status();
    if (id.ok()) handoff->id = *id;
    handoff_ = std::move(handoff);
  });
  return begun;
}

void PrefillSide::Push(int32_t layer, int32_t first, int32_t past) {
  loop_.Post([this, layer, first, past] {
    Handoff& handoff = *handoff_;
    const kv::KvGroups& groups = arena_.layout().groups;
    const int32_t group = groups.group_of(layer);
    const int32_t from = std::max(first, groups.FirstBlock(group, handoff.prompt_tokens));
    if (past <= from) return;
    handoff.pushed.Update(
        sender_->Push(handoff.id, layer, from,
                      handoff.blocks->group(group).subspan(static_cast<size_t>(from),
                                                           static_cast<size_t>(past - from))));
  });
}

absl::StatusOr<absl::Time> PrefillSide::Commit() {
  std::future<Handoff::Outcome> ended;
  absl::Status committed;
  loop_.RunAndWait([&] {
    ended = handoff_->outcome->get_future();
    proto::CommitBody body;
    body.set_sequence(handoff_->sequence);
    body.set_router(identity_.incarnation);
    body.mutable_prompt()->Resize(handoff_->prompt_tokens, 0);
    body.set_blocks(static_cast<int32_t>(kv::BlocksFor(handoff_->prompt_tokens)));
    committed = handoff_->pushed;
    committed.Update(sender_->Commit(handoff_->id, body));
  });
  // NotFound: over already, and the outcome says why.
  if (!committed.ok() && !absl::IsNotFound(committed)) return committed;
  if (ended.wait_for(kTransferTimeout) != std::future_status::ready) {
    return absl::DeadlineExceededError("a prompt was not handed over in time");
  }
  const auto [status, at] = ended.get();
  LYNX_RETURN_IF_ERROR(status);
  return at;
}

}  // namespace lynx::cli
