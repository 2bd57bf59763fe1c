#include "services/router/placement/make_policy.h"

#include "common/base/check.h"
#include "services/router/placement/expert_affinity.h"
#include "services/router/placement/least_load.h"
#include "services/router/placement/prefix_aware.h"
#include "services/router/placement/random_choice.h"
#include "services/router/placement/round_robin.h"
#include "services/router/placement/slo_aware.h"

namespace lynx::router {

const std::vector<std::string>& PlacementNames() {
  static const std::vector<std::string> names = {"least-load",      "prefix-aware", "slo-aware",
                                                 "expert-affinity", "round-robin",  "random"};
  return names;
}

std::unique_ptr<PlacementPolicy> MakePlacement(const std::string& name, uint64_t seed) {
  if (name == "least-load") return std::make_unique<LeastLoad>();
  if (name == "prefix-aware") return std::make_unique<PrefixAware>();
  if (name == "slo-aware") return std::make_unique<SloAware>();
  if (name == "expert-affinity") return std::make_unique<ExpertAffinity>();
  if (name == "round-robin") return std::make_unique<RoundRobin>();
  LYNX_CHECK_MSG(name == "random", name);
  return std::make_unique<RandomChoice>(seed);
}

}  // namespace lynx::router
