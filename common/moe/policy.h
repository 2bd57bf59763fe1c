#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lynx::moe {

// How the experts of a decode step are chosen, with its parameters: a value, cheap to copy.
//
// A parameter that a kind does not have is unset. Parameters that come from the model's preset when
// nobody gives them (alpha, beta, floor, k0) may be unset until WithPreset() (presets.h) fills
// them.
struct Policy {
  enum class Kind : uint8_t {
    kExact,       // Every row has its own top-k.
    kPrune,       // Every row has its own top-k0 only: fewer experts a row.
    kVote,        // The `experts` most often found in a top-k, and every row's top-`floor`.
    kLynxCompat,  // kLynx as its authors released it: ties to the lower id, no guard, no bypass.
    kLynx,        // Rows vote within bins of logit gaps by the batch's liking.
    kOea,         // Every row's top-k0.
    kBudget,      // Every row's top-`floor`, then the heaviest experts up to a limit.
    kMarginal,    // As kBudget, as long as the next expert is worth its cost.
    kAuto,        // The node's controller chooses; planners never see it.
  };
  static constexpr int32_t kUnset = -2;
  static constexpr int32_t kUnbounded = -1;  // beta: as many bins as there are gaps.

  Kind kind = Kind::kExact;
  double alpha = 0;          // lynx, lynx_compat: bins a unit of gap, > 0. 0: unset.
  int32_t beta = kUnset;     // lynx, lynx_compat: the last bin, >= 0, or kUnbounded.
  int32_t floor = kUnset;    // lynx, vote, budget, marginal: ranks always kept, in [0, k].
  bool self_scaled = false;  // lynx: gaps in units of the row's own, from rank 0 to rank k-1.
  int32_t k0 = kUnset;       // prune, oea: in [1, k].
  int32_t experts = kUnset;  // vote, budget (key `M`): in [k, N].
  double fraction = 0;       // budget: the same, as a share of the exact union; in (0, 1].
  // budget: until rows keep this much of their mass (RoutingPlan::kept_mass), in (0, 1]:
  double coverage = 0;      // in the mean,
  double row_coverage = 0;  // or each of them.
  double lambda = -1;       // marginal: kept weight that an expert must add per cost; >= 0.

  // Every kind but exact, prune, lynx_compat and auto. Where ranks share the experts, the share of
  // kept mass, over all rows, that may go so that the rank with most active experts has fewer; in
  // [0, 1). Below 0: unset, ranks do not matter. A row's floor stays, and its best expert.
  double ep_balance = -1;

  // Ranks of a row whose experts are always active.
  int32_t kept_ranks() const { return floor == kUnset ? 0 : floor; }
  bool lossy() const { return kind != Kind::kExact; }

  friend bool operator==(const Policy&, const Policy&) = default;
};

// "lynx", "budget", ...: the word for a kind in flags, requests and metrics.
std::string_view KindName(Policy::Kind kind);

// Reads "name" or "name:key=value,key=value", for example "lynx:alpha=3,beta=4,floor=1" or
// "budget:fraction=0.5". Keys are those of Policy, with `M` for experts; beta may be `none`.
// lynx without alpha and beta leaves its floor to the preset too, otherwise floor is 0 if not
// given.
//   InvalidArgument  unknown name or key, a value out of range, a parameter missing or too many;
//                    names it and what is allowed.
absl::StatusOr<Policy> ParsePolicy(std::string_view text);

// The same from parts, as flags and JSON requests give them.
absl::StatusOr<Policy> MakePolicy(std::string_view name,
                                  std::span<const std::pair<std::string, std::string>> parameters);

// The parameter that an error of these functions is about, as its key: for who names it otherwise,
// as a field of a request. Empty: the policy's name, or parameters that do not go together.
std::string ParameterOf(const absl::Status& error);

// The canonical text: ParsePolicy reads the same policy from it.
std::string ToString(const Policy& policy);

// Whether `policy` is complete and fits a model of `experts` experts of which a row uses `top_k`.
//   InvalidArgument  names the parameter, its value and its range.
absl::Status CheckPolicy(const Policy& policy, int32_t experts, int32_t top_k);

}  // namespace lynx::moe
