#include "common/collective/rank_threads.h"

#include <thread>
#include <utility>
#include <vector>

#include "common/base/status_macros.h"

namespace lynx::collective {

absl::Status OnEachRank(size_t ranks, const std::function<absl::Status(size_t rank)>& body) {
  std::vector<absl::Status> statuses(ranks);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] { statuses[rank] = body(rank); });
  }
  for (std::thread& thread : threads) thread.join();
  for (absl::Status& status : statuses) LYNX_RETURN_IF_ERROR(std::move(status));
  return absl::OkStatus();
}

}  // namespace lynx::collective
