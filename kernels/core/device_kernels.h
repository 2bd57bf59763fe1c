#pragma once

#include <cstddef>

namespace lynx::kernels {

struct CastArgs;
struct ClipArgs;
struct EmbedArgs;
struct ExpertFfnArgs;
struct GatherRowsArgs;
struct GateWeightsArgs;
struct GemmProducts;
struct GrowArgs;
struct KvCopyArgs;
struct KvWriteArgs;
struct LatentAttentionArgs;
struct LatentWriteArgs;
struct PagedAttentionArgs;
struct PlanArgs;
struct RmsNormArgs;
struct RopeArgs;
struct SampleArgs;

// Where a GPU works: what is queued on one stream runs in order.
struct DeviceQueue {
  void* stream = nullptr;        // A cudaStream_t.
  std::byte* scratch = nullptr;  // Device memory that no other stream uses, aligned to 256.
  size_t scratch_bytes = 0;
};

// What else an operation returns, beside the numbers of cudaError_t.
inline constexpr int kNoKernel = -1;
inline constexpr int kScratchTooSmall = -2;

// The operations of a GPU. Programs know no CUDA: the table comes from liblynx_cuda.so, or in tests
// from the same kernels under emulation.
//
// Each queues its work and returns at once: 0, or the cudaError_t by which it was refused, or one
// of the above. Pointers in arguments are to device memory, which must stay as it is until the work
// is done; sizes were checked, contents cannot be. Null: not there yet.
struct DeviceKernels {
  int (*cast)(const CastArgs&, const DeviceQueue&) = nullptr;
  int (*clip)(const ClipArgs&, const DeviceQueue&) = nullptr;
  int (*embed)(const EmbedArgs&, const DeviceQueue&) = nullptr;
  int (*expert_ffn)(const ExpertFfnArgs&, const DeviceQueue&) = nullptr;
  int (*gate_weights)(const GateWeightsArgs&, const DeviceQueue&) = nullptr;
  int (*gather_rows)(const GatherRowsArgs&, const DeviceQueue&) = nullptr;
  int (*gemm)(const GemmProducts&, const DeviceQueue&) = nullptr;
  int (*grow)(const GrowArgs&, const DeviceQueue&) = nullptr;
  int (*kv_gather)(const KvCopyArgs&, const DeviceQueue&) = nullptr;
  int (*kv_scatter)(const KvCopyArgs&, const DeviceQueue&) = nullptr;
  int (*latent_attention)(const LatentAttentionArgs&, const DeviceQueue&) = nullptr;
  int (*paged_attention)(const PagedAttentionArgs&, const DeviceQueue&) = nullptr;
  int (*rms_norm)(const RmsNormArgs&, const DeviceQueue&) = nullptr;
  int (*rope)(const RopeArgs&, const DeviceQueue&) = nullptr;
  int (*kv_write)(const KvWriteArgs&, const DeviceQueue&) = nullptr;
  int (*latent_write)(const LatentWriteArgs&, const DeviceQueue&) = nullptr;
  int (*sample)(const SampleArgs&, const DeviceQueue&) = nullptr;
  int (*plan)(const PlanArgs&, const DeviceQueue&) = nullptr;
};

}  // namespace lynx::kernels
