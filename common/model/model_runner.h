#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/dtype.h"
#include "common/collective/communicator.h"
#include "common/kv/kv_arena.h"
#include "common/kv/kv_layout.h"
#include "common/model/shard_plan.h"
#include "common/model/tensor.h"
#include "common/moe/routing_plan.h"
#include "kernels/core/isa.h"

namespace lynx::kernels {
class Device;
}  // namespace lynx::kernels

namespace lynx::model {

class ExpertMover;
class RouterOverride;
struct DeviceRoom;
struct MemoryNeed;
struct ModelSpec;

struct RunnerOptions {
  std::filesystem::path model_dir;     // A Hugging Face folder; of Load() alone.
  DType compute_dtype = DType::kBf16;  // kF32 or kBf16: what activations round to in a GEMM.
  DType kv_dtype = DType::kBf16;       // kF32 or kBf16
  int32_t kv_blocks = 0;               // > 0; each of the layers of one group of kv::KvGroups.
  // Of one step, > 0, and of each replica of attention: buffers are sized for it at load. A step of
  // `layout.dp` replicas may have so many times as much in all.
  int32_t max_step_rows = 0;
  int32_t max_step_logits = 0;
  // Computes there, and KV lies there; null: on the CPUs. Outlives the runner.
  kernels::Device* device = nullptr;
  // With a device, asked before weights are read: how many blocks, in place of kv_blocks, in the
  // room that is left beside the rest. Its error is that of Load() or Create(). Empty: kv_blocks.
  std::function<absl::StatusOr<int32_t>(const DeviceRoom&)> device_kv_blocks = nullptr;
  int32_t threads = 0;  // 0: as many as this process may use.
  // Pins the runner's threads, and the one that steps, to these CPUs, one each; empty: not pinned.
  std::vector<int32_t> cpus = {};
  // Kernels of this instruction set, so that nodes on unlike machines are of one numeric class;
  // none: the widest that this machine has.
  std::optional<kernels::Isa> isa = std::nullopt;
  // In a step of decode and prompt rows the decode rows are remapped as their policies say, prompt
  // rows and their experts being given. Otherwise such a step is exact.
  bool remap_mixed_steps = false;
  // Asked, before weights are read, for the memory that the runner will keep, with a device for
  // that of the host which weights pass; its error is that of Load() or Create(). Empty: nobody is
  // asked.
  std::function<absl::Status(const MemoryNeed&)> admit_memory = nullptr;
  // Told while weights are packed how many of how many bytes are done; on a thread of Load(),
  // before it returns. Empty: nobody is told.
  std::function<void(int64_t done, int64_t total)> load_progress = nullptr;
  // How the ranks of a group share the model, and this rank's part in what they say to each other;
  // null: there is one. Every rank makes the same runner and the same steps. Outlives the runner.
  ParallelLayout layout = {};
  collective::Communicator* ranks = nullptr;
  // Benches only; null: none. Outlives the runner.
  RouterOverride* router_override = nullptr;
};

// The rows one sequence contributes to a step: a chunk of its prompt, or one generated token.
struct SequenceRows {
  std::span<const TokenId> tokens;  // Not empty; every id in [0, vocab_size).
  int32_t start = 0;                // Position of tokens[0]. KV of [0, start) is in `blocks`.
  // [groups][n]: for each group of layers of the KV layout a table of n >= start + tokens.size()
  // tokens' blocks, which are of the KV arena of each rank of its replica. Those of a group before
  // what its layers attend to from `start` on are not looked at.
  std::span<const kv::BlockId> blocks;
  int32_t logits_rows = 0;  // Logits wanted for this many last rows; 0..tokens.size().
  bool decode = false;      // Phase: a generated token's row (true) or prompt.
  // How its decode row may be remapped; null: never. Outlives the step.
  const moe::Policy* policy = nullptr;
  // Whose ranks hold its KV and compute its attention, in [0, layout.dp); they are the ranks
  // [replica * tp, (replica + 1) * tp). For its life, or until its KV is given up.
  int32_t replica = 0;
};

// What a step touched, for metrics and benches. Overwritten by the next step. Rows and plans are of
// all replicas of attention, bytes of this rank.
struct StepStats {
  int64_t weight_bytes_read = 0;  // As packed; by the plan, each active expert counted once.
  // Of those, what kernels really read from memory, counted where they do: the same, or a kernel
  // reads something twice or passes something by. Kernels of a device do not count: 0.
  int64_t weight_bytes_streamed = 0;
  int64_t kv_bytes_read = 0;
  int64_t expert_bytes_read = 0;   // Routed experts' part of weight_bytes_read.
  int64_t expert_bytes_saved = 0;  // What exact plans would have read on top of that.
  moe::Phase phase = moe::Phase::kDecode;
  int32_t decode_rows = 0;
  int32_t prefill_rows = 0;
  std::vector<moe::PlanStats> plans;  // Per layer; all zero for a dense layer.
  std::vector<float> plan_seconds;    // Per layer: time the planner took; of a device 0.
};

// Called on the stepping thread as the step proceeds; of several ranks, any one may have it.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  // KV of every row is written for layers 0..layer; nothing of the step writes them again. False
  // abandons the step at once: KV of its rows is then undefined, everything else is untouched. Of
  // several ranks all abandon it in the next layer; after the last layer they do not.
  virtual bool OnLayerDone(int32_t layer) = 0;
  // Entries of the batch, ascending, that leave the step here: asked after each layer but the last
  // that was let pass, unless there are several ranks or a device has the next layer already. The
  // step touches their KV no more, they have no part in plans and no logits, and the entries behind
  // them move up. At least one stays. Read before the next call.
  virtual std::span<const size_t> Leaving() { return {}; }
};

// Executes forward passes of one model over a paged KV cache.
//
// Exactness: within one numeric_class() the KV and logits of a row without a lossy policy have the
// same bits whatever other rows share the step, however the prompt was cut into steps, and whether
// the row came as prompt or as a generated token; as long as the KV behind it was made so, too.
//
// Owned and called by one thread at a time; it runs its own worker threads inside Step. The KV
// arena may be read and written by other threads wherever no running step uses the block.
class ModelRunner {
 public:
  virtual ~ModelRunner() = default;

  // Loads and checks everything a step needs, so that a folder is refused here, never at the first
  // request: InvalidArgument (config or tensor is wrong; names file, key or tensor, wanted and
  // found), NotFound (missing file or tensor), Unimplemented (a family or feature we do not serve),
  // ResourceExhausted (memory).
  static absl::StatusOr<std::unique_ptr<ModelRunner>> Load(const RunnerOptions& options);

  // The same for weights that are in memory already, under the names of the family of `spec`, as
  // synthetic ones are. They are copied. `identity` stands for them in the compatibility hash:
  // other weights, other identity. Experts do not move, having no files to be read from: spare
  // slots keep what they start with. Fails as Load() does.
  static absl::StatusOr<std::unique_ptr<ModelRunner>> Create(const RunnerOptions& options,
                                                             ModelSpec spec,
                                                             const TensorMap& tensors,
                                                             std::string_view identity);

  // Runs one forward pass. `logits()` then holds, in order of `batch`, the wanted rows of the
  // entries that have stayed. Of several ranks each is given the same batch, of all replicas, in
  // the same order: a replica without entries takes part, too. Where there are several replicas,
  // rank 0 alone has logits.
  //   InvalidArgument  the batch breaks a bound above; nothing was computed.
  //   Cancelled        the observer abandoned the step; of several ranks, all do at the same layer.
  //   as Communicator  another rank is lost: this group of ranks is of no more use.
  // No allocation per row.
  virtual absl::Status Step(std::span<const SequenceRows> batch, StepObserver* observer) = 0;

  // float32 [rows wanted by the last step, vocab_size]; valid until the next Step.
  virtual std::span<const float> logits() const = 0;
  virtual const StepStats& stats() const = 0;

  // Null where experts stay with their ranks: without spare slots in the layout, or of Create().
  virtual ExpertMover* expert_mover() { return nullptr; }

  virtual const ModelSpec& spec() const = 0;
  virtual kv::KvArena& kv() = 0;  // Of this rank.

  // Names everything that decides the bits of a result (DESIGN 4.1): build, back end, instruction
  // set, dtypes, parallel layout. Equal strings: equal bits, on whichever replica of attention.
  virtual const std::string& numeric_class() const = 0;
  // Hex digest of what two nodes must share to exchange KV: model config and weights' identity,
  // compute and KV dtype, layers, heads, head size, block size. See services' handshake.
  virtual const std::string& compatibility_hash() const = 0;
};

}  // namespace lynx::model
