#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/collective/rendezvous.h"

namespace lynx::collective {

// Of ranks that put `prefix` and their number when they come, those that have not, by commas.
inline std::string MissingRanks(Rendezvous& rendezvous, std::string_view prefix, int size) {
  std::vector<int> missing;
  for (int rank = 0; rank < size; ++rank) {
    const std::string key = absl::StrCat(std::string(prefix), rank);
    if (!rendezvous.Get(key, absl::ZeroDuration()).ok()) missing.push_back(rank);
  }
  return absl::StrJoin(missing, ", ");
}

}  // namespace lynx::collective
