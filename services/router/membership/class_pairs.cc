#include "services/router/membership/class_pairs.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace lynx::router {
namespace {

bool IsReady(const Member* member) { return member->state == MemberState::kReady; }

size_t Width(const ClassPair& pair) {
  if (pair.prefill.empty()) return pair.decode.size();
  return std::min(pair.prefill.size(), pair.decode.size());
}

bool GoesFirst(const ClassPair& a, const ClassPair& b) {
  const auto rank = [](const ClassPair& p) {
    return std::make_tuple(p.prefill.empty(), p.prefill_class != p.decode_class,
                           -static_cast<int64_t>(Width(p)), p.prefill_class, p.decode_class);
  };
  return rank(a) < rank(b);
}

}  // namespace

bool ClassPair::ready() const {
  const bool prefills = std::any_of(prefill.begin(), prefill.end(), IsReady);
  return std::any_of(decode.begin(), decode.end(), [&](const Member* member) {
    return IsReady(member) && (prefills || Local(*member));
  });
}

bool ClassPair::Local(const Member& node) const {
  return prefill_class == decode_class && node.status.prompt_rows() > 0;
}

std::vector<ClassPair> ClassPairs(const NodeTable& nodes,
                                  const std::function<bool(const Member&)>& takes) {
  // Nodes of one numeric class that may exchange KV with the same others.
  using Kind = std::pair<std::string_view, std::string_view>;  // Compatibility hash and class.
  std::map<Kind, std::vector<const Member*>> prefill;
  std::map<Kind, std::vector<const Member*>> decode;
  for (const auto& [endpoint, member] : nodes.members()) {
    if (member.state != MemberState::kReady && member.state != MemberState::kSuspect) continue;
    if (member.status.compatibility_hash().empty() || !takes(member)) continue;
    const Kind kind = {member.status.compatibility_hash(), member.status.numeric_class()};
    (member.role == proto::ROLE_PREFILL ? prefill : decode)[kind].push_back(&member);
    if (member.role == proto::ROLE_DECODE && member.status.prompt_rows() > 0) prefill[kind];
  }
  std::vector<ClassPair> pairs;
  for (const auto& [of_prefill, prefills] : prefill) {
    for (const auto& [of_decode, decodes] : decode) {
      if (of_prefill.first != of_decode.first) continue;
      if (prefills.empty() && of_prefill != of_decode) continue;
      pairs.push_back({of_prefill.second, of_decode.second, prefills, decodes});
    }
  }
  std::stable_sort(pairs.begin(), pairs.end(), GoesFirst);
  return pairs;
}

}  // namespace lynx::router
