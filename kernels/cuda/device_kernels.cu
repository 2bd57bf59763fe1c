// All kernels for GPUs in one translation unit: compiling the headers of the toolkit costs more
// than compiling the kernels.
#include "kernels/attention/attention_cuda.cuh"
#include "kernels/cast/cast_cuda.cuh"
#include "kernels/cuda/device_kernels.h"
#include "kernels/elementwise/elementwise_cuda.cuh"
#include "kernels/gemm/embed_cuda.cuh"
#include "kernels/gemm/gemm_cuda.cuh"
#include "kernels/kv/kv_copy_cuda.cuh"
#include "kernels/kv/kv_write_cuda.cuh"
#include "kernels/moe/expert_ffn_cuda.cuh"
#include "kernels/moe/plan_cuda.cuh"
#include "kernels/norm/rms_norm_cuda.cuh"
#include "kernels/rope/rope_cuda.cuh"
#include "kernels/sampling/sample_cuda.cuh"

namespace lynx::cuda {

const kernels::DeviceKernels& Kernels() {
  static constexpr kernels::DeviceKernels kKernels = {
      .cast = &kernels::device::QueueCast,
      .clip = &kernels::device::QueueClip,
      .embed = &kernels::device::QueueEmbed,
      .expert_ffn = &kernels::device::QueueExpertFfn,
      .gate_weights = &kernels::device::QueueGateWeights,
      .gather_rows = &kernels::device::QueueGatherRows,
      .gemm = &kernels::device::QueueGemm,
      .grow = &kernels::device::QueueGrow,
      .kv_gather = &kernels::device::QueueKvGather,
      .kv_scatter = &kernels::device::QueueKvScatter,
      .latent_attention = &kernels::device::QueueLatentAttention,
      .paged_attention = &kernels::device::QueuePagedAttention,
      .rms_norm = &kernels::device::QueueRmsNorm,
      .rope = &kernels::device::QueueRope,
      .kv_write = &kernels::device::QueueKvWrite,
      .latent_write = &kernels::device::QueueLatentWrite,
      .sample = &kernels::device::QueueSample,
      .plan = &kernels::device::QueuePlan,
  };
  return kKernels;
}

}  // namespace lynx::cuda
