#include "common/model/expert_rows.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <numeric>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "kernels/gemm/gemm.h"

namespace lynx::model {
namespace {

class RowsOnEveryRank final : public ExpertRows {
 public:
  void Begin(std::span<const int64_t> /*rows*/) override {}
  absl::Status Agree(RankSum& /*sum*/) override { return absl::OkStatus(); }  // Its End() does.
  absl::StatusOr<std::span<float>> Gather(std::span<float> own, RankSum& /*sum*/) override {
    return own;
  }
  absl::StatusOr<Taken> Dispatch(ActivationBuffer& x, const moe::RoutingPlan& /*plan*/,
                                 std::span<const int32_t> /*part_of*/, float* y) override {
    return Taken{.all = true, .rows = {}, .x = x.data(), .y = y};
  }
  absl::Status Combine(float* /*y*/) override { return absl::OkStatus(); }
};

class RowsByReplica final : public ExpertRows {
 public:
  RowsByReplica(collective::Communicator& peers, const ParallelLayout& layout, int32_t rank,
                const Sizes& sizes)
      : peers_(peers),
        replicas_(static_cast<size_t>(layout.dp)),
        replica_(static_cast<size_t>(layout.ReplicaOf(rank))),
        part_(rank / layout.expert_tp()),
        hidden_(static_cast<size_t>(sizes.hidden)),
        experts_(static_cast<size_t>(sizes.experts)),
        x_row_bytes_(static_cast<size_t>(kernels::ActivationStride(sizes.hidden, sizes.dtype)) *
                     SizeOf(sizes.dtype)),
        begins_(replicas_ + 1),
        send_bytes_(replicas_),
        received_bytes_(replicas_),
        sent_rows_(replicas_),
        x_(sizes.experts > 0 ? sizes.max_rows * layout.dp : 0, sizes.hidden, sizes.dtype) {
    for (int32_t replica = 0; replica < layout.dp; ++replica) {
      part_of_peer_.push_back((replica * layout.tp + rank % layout.tp) / layout.expert_tp());
    }
    const auto own = static_cast<size_t>(sizes.max_rows);
    const size_t all = own * replicas_;
    // Logits, and behind those of a replica whether to abandon the step.
    said_.resize((own * experts_ + 1) * replicas_);
    heard_.resize(said_.size());
    if (experts_ == 0) return;
    logits_.resize(all * experts_);
    for (std::vector<int32_t>& rows : sent_rows_) rows.reserve(own);
    taken_.reserve(all);
    sent_x_.resize(all * x_row_bytes_);
    y_.resize(all * hidden_);
    results_.resize(all * hidden_);
  }

  void Begin(std::span<const int64_t> rows) override {
    LYNX_CHECK(rows.size() == replicas_);
    for (size_t i = 0; i < replicas_; ++i) begins_[i + 1] = begins_[i] + rows[i];
  }

  absl::Status Agree(RankSum& sum) override { return Say({}, 0, sum); }

  absl::StatusOr<std::span<float>> Gather(std::span<float> own, RankSum& sum) override {
    LYNX_RETURN_IF_ERROR(Say(own, experts_, sum));
    const float* from = heard_.data();
    for (size_t i = 0; i < replicas_; ++i) {
      const size_t count = Rows(i) * experts_;
      std::copy_n(from, count, logits_.data() + static_cast<size_t>(begins_[i]) * experts_);
      from += count + 1;
    }
    return std::span(logits_).first(static_cast<size_t>(begins_.back()) * experts_);
  }

  absl::StatusOr<Taken> Dispatch(ActivationBuffer& x, const moe::RoutingPlan& plan,
                                 std::span<const int32_t> part_of, float* /*y*/) override {
    const auto top_k = static_cast<size_t>(plan.top_k());
    const auto needs = [&](int64_t row, int32_t part) {
      const auto ids = plan.ids().subspan(static_cast<size_t>(row) * top_k, top_k);
      return std::any_of(ids.begin(), ids.end(), [&](int32_t expert) {
        return part_of[static_cast<size_t>(expert)] == part;
      });
    };
    std::byte* to = sent_x_.data();
    taken_.clear();
    for (size_t peer = 0; peer < replicas_; ++peer) {
      std::vector<int32_t>& sent = sent_rows_[peer];
      sent.clear();
      for (int64_t row = begins_[replica_]; row < begins_[replica_ + 1]; ++row) {
        if (!needs(row, part_of_peer_[peer])) continue;
        const auto own_row = static_cast<size_t>(row - begins_[replica_]);
        sent.push_back(static_cast<int32_t>(own_row));
        std::memcpy(to, static_cast<const std::byte*>(x.data()) + own_row * x_row_bytes_,
                    x_row_bytes_);
        to += x_row_bytes_;
      }
      send_bytes_[peer] = static_cast<int64_t>(sent.size() * x_row_bytes_);
      const size_t before = taken_.size();
      for (int64_t row = begins_[peer]; row < begins_[peer + 1]; ++row) {
        if (needs(row, part_)) taken_.push_back(static_cast<int32_t>(row));
      }
      received_bytes_[peer] = static_cast<int64_t>((taken_.size() - before) * x_row_bytes_);
    }
    LYNX_RETURN_IF_ERROR(
        peers_.AllToAll(std::span(sent_x_.data(), to), send_bytes_,
                        std::span(static_cast<std::byte*>(x_.data()), taken_.size() * x_row_bytes_),
                        received_bytes_));
    std::fill_n(y_.begin(), taken_.size() * hidden_, 0.0f);
    return Taken{.all = false, .rows = taken_, .x = x_.data(), .y = y_.data()};
  }

  absl::Status Combine(float* y) override {
    // Results go where rows came from.
    const size_t result_bytes = hidden_ * sizeof(float);
    size_t results = 0;
    for (size_t peer = 0; peer < replicas_; ++peer) {
      send_bytes_[peer] = received_bytes_[peer] / static_cast<int64_t>(x_row_bytes_) *
                          static_cast<int64_t>(result_bytes);
      received_bytes_[peer] = static_cast<int64_t>(sent_rows_[peer].size() * result_bytes);
      results += sent_rows_[peer].size();
    }
    LYNX_RETURN_IF_ERROR(peers_.AllToAll(
        std::as_bytes(std::span(y_).first(taken_.size() * hidden_)), send_bytes_,
        std::as_writable_bytes(std::span(results_).first(results * hidden_)), received_bytes_));
    const float* from = results_.data();
    for (const std::vector<int32_t>& rows : sent_rows_) {
      for (const int32_t row : rows) {
        float* const to = y + static_cast<size_t>(row) * hidden_;
        for (size_t i = 0; i < hidden_; ++i) to[i] += from[i];
        from += hidden_;
      }
    }
    return absl::OkStatus();
  }

 private:
  size_t Rows(size_t replica) const {
    return static_cast<size_t>(begins_[replica + 1] - begins_[replica]);
  }

  // Tells all peers `own`, which has `width` values for each row, and whether to go on; heard_ then
  // has the same of each.
  absl::Status Say(std::span<const float> own, size_t width, RankSum& sum) {
    float* to = said_.data();
    const float abandon = sum.TakeAbandoned() ? 1.0f : 0.0f;
    size_t heard = 0;
    for (size_t peer = 0; peer < replicas_; ++peer) {
      to = std::copy(own.begin(), own.end(), to);
      *to++ = abandon;
      send_bytes_[peer] = static_cast<int64_t>((own.size() + 1) * sizeof(float));
      const size_t count = Rows(peer) * width + 1;
      received_bytes_[peer] = static_cast<int64_t>(count * sizeof(float));
      heard += count;
    }
    LYNX_RETURN_IF_ERROR(peers_.AllToAll(std::as_bytes(std::span(said_.data(), to)), send_bytes_,
                                         std::as_writable_bytes(std::span(heard_).first(heard)),
                                         received_bytes_));
    const float* from = heard_.data();
    for (size_t peer = 0; peer < replicas_; ++peer) {
      from += Rows(peer) * width;
      if (*from++ > 0) return absl::CancelledError("a rank has abandoned the step");
    }
    return absl::OkStatus();
  }

  collective::Communicator& peers_;
  const size_t replicas_;
  const size_t replica_;
  const int32_t part_;
  const size_t hidden_;
  const size_t experts_;
  const size_t x_row_bytes_;
  std::vector<int32_t> part_of_peer_;            // [replicas]
  std::vector<int64_t> begins_;                  // [replicas + 1] Of their rows in the plan.
  std::vector<int64_t> send_bytes_;              // [replicas] Of the current exchange.
  std::vector<int64_t> received_bytes_;          // [replicas]
  std::vector<std::vector<int32_t>> sent_rows_;  // [replicas] This rank's rows that went there.
  std::vector<int32_t> taken_;
  std::vector<float> said_;
  std::vector<float> heard_;
  std::vector<float> logits_;      // [rows of the step, experts]
  std::vector<std::byte> sent_x_;  // [rows sent to all peers, x_row_bytes]
  ActivationBuffer x_;             // [taken]
  std::vector<float> y_;           // [taken, hidden]
  std::vector<float> results_;     // [rows sent to all peers, hidden]
};

}  // namespace

std::unique_ptr<ExpertRows> ExpertRows::Make(collective::Communicator* peers,
                                             const ParallelLayout& layout, int32_t rank,
                                             const Sizes& sizes) {
  if (peers == nullptr) return std::make_unique<RowsOnEveryRank>();
  return std::make_unique<RowsByReplica>(*peers, layout, rank, sizes);
}

}  // namespace lynx::model
