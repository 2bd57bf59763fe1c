#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "kernels/attention/latent_attention_args.h"
#include "kernels/attention/paged_attention_args.h"
#include "kernels/cast/cast_args.h"
#include "kernels/core/device_kernels.h"
#include "kernels/elementwise/elementwise_args.h"
#include "kernels/gemm/embed_args.h"
#include "kernels/gemm/gemm_args.h"
#include "kernels/kv/kv_copy_args.h"
#include "kernels/kv/kv_write_args.h"
#include "kernels/moe/expert_ffn_args.h"
#include "kernels/moe/plan_args.h"
#include "kernels/norm/rms_norm_args.h"
#include "kernels/rope/rope_args.h"
#include "kernels/sampling/sample_args.h"

namespace lynx::cuda {

// A number for the sizes of all that programs and the plug-in hand each other by address: another
// one, and they were built of different sources.
constexpr uint64_t LayoutOf(std::initializer_list<size_t> sizes) {
  uint64_t layout = 0xcbf29ce484222325u;
  for (const size_t size : sizes) layout = (layout ^ size) * 0x100000001b3u;
  return layout;
}

inline constexpr uint64_t kPluginLayout = LayoutOf(
    {sizeof(kernels::DeviceKernels), sizeof(kernels::DeviceQueue), sizeof(kernels::CastArgs),
     sizeof(kernels::ClipArgs), sizeof(kernels::EmbedArgs), sizeof(kernels::ExpertFfnArgs),
     sizeof(kernels::GatherRowsArgs), sizeof(kernels::GateWeightsArgs),
     sizeof(kernels::GemmProducts), sizeof(kernels::GrowArgs), sizeof(kernels::KvCopyArgs),
     sizeof(kernels::KvWriteArgs), sizeof(kernels::LatentAttentionArgs),
     sizeof(kernels::LatentWriteArgs), sizeof(kernels::PagedAttentionArgs),
     sizeof(kernels::PlanArgs), sizeof(kernels::RmsNormArgs), sizeof(kernels::RopeArgs),
     sizeof(kernels::SampleArgs)});

}  // namespace lynx::cuda
