#include "services/router/membership/class_pairs.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace lynx::router {
namespace {

bool IsReady(const Member* member) { return member->state == MemberState::kReady; }

size_t Width(const ClassPair& pair) { return std::min(pair.prefill.size(), pair.decode.size()); }

bool GoesFirst(const ClassPair& a, const ClassPair& b) {
  const auto rank = [](const ClassPair& p) {
    return std::make_tuple(p.prefill_class != p.decode_class, -static_cast<int64_t>(Width(p)),
                           p.prefill_class, p.decode_class);
  };
  return rank(a) < rank(b);
}

}  // namespace

bool ClassPair::ready() const {
  return std::any_of(prefill.begin(), prefill.end(), IsReady) &&
         std::any_of(decode.begin(), decode.end(), IsReady);
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
    auto& kinds = member.role == proto::ROLE_PREFILL ? prefill : decode;
    kinds[{member.status.compatibility_hash(), member.status.numeric_class()}].push_back(&member);
  }
  std::vector<ClassPair> pairs;
  for (const auto& [of_prefill, prefills] : prefill) {
    for (const auto& [of_decode, decodes] : decode) {
      if (of_prefill.first != of_decode.first) continue;
      pairs.push_back({of_prefill.second, of_decode.second, prefills, decodes});
    }
  }
  std::stable_sort(pairs.begin(), pairs.end(), GoesFirst);
  return pairs;
}

}  // namespace lynx::router
