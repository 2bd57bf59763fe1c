#pragma once

#include <cstdint>

#include "common/moe/internal/workspace.h"
#include "common/moe/policy.h"
#include "common/moe/routing_plan.h"

// The stages of a plan, in order. See Workspace for what each writes.
namespace lynx::moe::internal {

// Finds padding and bad rows and ranks the others: states, scores, exact_ids.
void RankRows(const RouterInput& input, Workspace& workspace);

// Selections: set `selected` from what `voters` want. A voter whose state is kOwn has its whole
// top-k in it.
void SelectLynx(const Policy& policy, Workspace& workspace);  // kLynx and kLynxCompat.
void SelectTopRanks(const RouterInput& input, const Policy& policy, Workspace& workspace);
void SelectVote(const RouterInput& input, const Policy& policy, Workspace& workspace);
void SelectBudget(const RouterInput& input, const Policy& policy, Workspace& workspace);
void SelectMarginal(const RouterInput& input, const Policy& policy, Workspace& workspace);

// Where ranks share the experts and every remapped row's policy asks for it: changes the active set
// so that the rank that holds most of what rows use holds fewer. The set stays smaller than
// `below`. Overwrites `voters` and `selected`. False: it is as it was.
bool BalanceRanks(const RouterInput& input, int32_t below, Workspace& workspace);

// How many of `set` [experts] the rank that holds most of them holds. Ranks share the experts.
int32_t MostOnARank(const RouterInput& input, std::span<const uint8_t> set, Workspace& workspace);

// Rows that find fewer than top-k usable experts in the active set add their own.
void AddShortRows(const RouterInput& input, Workspace& workspace);

// Gives every row that votes its experts: its best within the active set.
void Assign(const RouterInput& input, Workspace& workspace);

// Writes the weights of row `row` for `ids`, which it chose where its own are `exact`, and returns
// its kept mass. Equal sets have the same bits whatever the policy.
float Weigh(const RouterInput& input, int32_t row, std::span<const int32_t> exact,
            std::span<const int32_t> ids, std::span<float> weights, Workspace& workspace);

// What selections share.

// Adds the first `policy.kept_ranks()` experts of every voter, all of those that keep their own.
void SelectFloors(int32_t ranks, Workspace& workspace);

// Softmax of every voter's logits in 2^-24 (`mass`), and its sum over voters (`column_mass`). Sums
// of integers: neither the order of rows nor that of experts matters.
void SumMass(const RouterInput& input, Workspace& workspace);

// All experts by falling `column_mass`, ties to the lower id: `order`. Uses `liking`.
std::span<const int32_t> OrderByMass(Workspace& workspace);

}  // namespace lynx::moe::internal
