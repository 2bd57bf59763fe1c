#include "common/node/step_plan.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace lynx::node {
namespace {

static_assert(std::is_trivially_copyable_v<moe::Policy>);

// And sizes of what follows it in this order: policies, entries, tokens, blocks.
struct Header {
  uint32_t magic = 0;
  uint32_t expert_change = 0;
  uint32_t policies = 0;
  uint32_t entries = 0;
  uint32_t tokens = 0;
  uint32_t blocks = 0;
};
// Another form of a policy is another step.
constexpr uint32_t kMagic = 0x53545000 + sizeof(moe::Policy);

struct Entry {
  uint32_t tokens = 0;
  uint32_t blocks = 0;
  int32_t start = 0;
  int32_t logits_rows = 0;
  int32_t decode = 0;
  int32_t policy = -1;
  int32_t replica = 0;
};

template <typename T>
void Append(const T* values, size_t count, std::string& to) {
  to.append(reinterpret_cast<const char*>(values), count * sizeof(T));
}

template <typename T>
bool Take(std::string_view& from, size_t count, std::vector<T>& values) {
  if (from.size() / sizeof(T) < count) return false;
  values.resize(count);
  // An empty vector may have no data() at all.
  if (count > 0) std::memcpy(values.data(), from.data(), count * sizeof(T));
  from.remove_prefix(count * sizeof(T));
  return true;
}

bool IsPolicy(const moe::Policy& policy) {
  uint8_t self_scaled = 0;
  std::memcpy(&self_scaled, &policy.self_scaled, sizeof(self_scaled));
  return policy.kind <= moe::Policy::Kind::kAuto && self_scaled <= 1;
}

}  // namespace

std::string EncodeStep(std::span<const model::SequenceRows> batch, uint32_t expert_change) {
  Header header{.magic = kMagic,
                .expert_change = expert_change,
                .entries = static_cast<uint32_t>(batch.size())};
  std::vector<const moe::Policy*> policies;
  std::vector<Entry> entries;
  for (const model::SequenceRows& sequence : batch) {
    Entry& entry = entries.emplace_back();
    entry.tokens = static_cast<uint32_t>(sequence.tokens.size());
    entry.blocks = static_cast<uint32_t>(sequence.blocks.size());
    entry.start = sequence.start;
    entry.logits_rows = sequence.logits_rows;
    entry.decode = sequence.decode ? 1 : 0;
    entry.replica = sequence.replica;
    if (sequence.policy != nullptr) {
      const auto known = std::find(policies.begin(), policies.end(), sequence.policy);
      entry.policy = static_cast<int32_t>(known - policies.begin());
      if (known == policies.end()) policies.push_back(sequence.policy);
    }
    header.tokens += entry.tokens;
    header.blocks += entry.blocks;
  }
  header.policies = static_cast<uint32_t>(policies.size());

  std::string bytes;
  bytes.reserve(sizeof(Header) + policies.size() * sizeof(moe::Policy) +
                entries.size() * sizeof(Entry) + header.tokens * sizeof(TokenId) +
                header.blocks * sizeof(kv::BlockId));
  Append(&header, 1, bytes);
  for (const moe::Policy* policy : policies) Append(policy, 1, bytes);
  Append(entries.data(), entries.size(), bytes);
  for (const model::SequenceRows& sequence : batch) {
    Append(sequence.tokens.data(), sequence.tokens.size(), bytes);
  }
  for (const model::SequenceRows& sequence : batch) {
    Append(sequence.blocks.data(), sequence.blocks.size(), bytes);
  }
  return bytes;
}

absl::StatusOr<StepPlan> StepPlan::Decode(std::string_view bytes) {
  const auto wrong = [](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat("a step of rank 0 with ", what...));
  };
  const size_t total = bytes.size();
  std::vector<Header> header;
  if (!Take(bytes, 1, header) || header[0].magic != kMagic) return wrong("another beginning");
  StepPlan plan;
  plan.expert_change_ = header[0].expert_change;
  std::vector<Entry> entries;
  if (!Take(bytes, header[0].policies, plan.policies_) ||
      !Take(bytes, header[0].entries, entries) || !Take(bytes, header[0].tokens, plan.tokens_) ||
      !Take(bytes, header[0].blocks, plan.blocks_) || !bytes.empty()) {
    return wrong("other sizes than its ", total, " bytes");
  }
  for (const moe::Policy& policy : plan.policies_) {
    if (!IsPolicy(policy)) return wrong("a policy that is none");
  }
  std::span<const TokenId> tokens = plan.tokens_;
  std::span<const kv::BlockId> blocks = plan.blocks_;
  plan.batch_.reserve(entries.size());
  for (const Entry& entry : entries) {
    if (entry.tokens > tokens.size() || entry.blocks > blocks.size()) {
      return wrong("more rows or blocks than it has");
    }
    if (entry.policy < -1 || entry.policy >= static_cast<int32_t>(plan.policies_.size())) {
      return wrong("policy ", entry.policy, " of ", plan.policies_.size());
    }
    plan.batch_.push_back(
        {.tokens = tokens.first(entry.tokens),
         .start = entry.start,
         .blocks = blocks.first(entry.blocks),
         .logits_rows = entry.logits_rows,
         .decode = entry.decode != 0,
         .policy = entry.policy < 0 ? nullptr : &plan.policies_[static_cast<size_t>(entry.policy)],
         .replica = entry.replica});
    tokens = tokens.subspan(entry.tokens);
    blocks = blocks.subspan(entry.blocks);
  }
  if (!tokens.empty() || !blocks.empty()) return wrong("rows or blocks of no sequence");
  return plan;
}

}  // namespace lynx::node
