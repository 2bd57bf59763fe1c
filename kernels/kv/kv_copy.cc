#include "kernels/kv/kv_copy.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace lynx::kernels {
namespace {

bool InUnits(int64_t bytes) { return bytes % kKvCopyUnit == 0; }
bool InUnits(const std::byte* at) {
  return InUnits(static_cast<int64_t>(reinterpret_cast<uintptr_t>(at)));
}

absl::Status Validate(const char* operation, const KvCopyArgs& args, Backend backend) {
  if (args.block_count < 0 || args.block_count >= int64_t{1} << 31 || args.piece_count < 1 ||
      args.piece_count > kMaxKvPieces || !InUnits(args.kv) || !InUnits(args.packed) ||
      !InUnits(args.block_stride_bytes) || args.block_stride_bytes >= int64_t{1} << 31) {
    return absl::InvalidArgumentError(
        absl::StrCat(operation, ": block_count ", args.block_count, ", piece_count ",
                     args.piece_count, ", block_stride_bytes ", args.block_stride_bytes,
                     "; kv, packed and strides are multiples of ", kKvCopyUnit, " bytes"));
  }
  for (int i = 0; i < args.piece_count; ++i) {
    const KvPiece& piece = args.pieces[i];
    if (piece.offset < 0 || piece.bytes <= 0 || !InUnits(piece.offset) || !InUnits(piece.bytes) ||
        piece.bytes > args.block_stride_bytes - piece.offset) {
      return absl::InvalidArgumentError(absl::StrCat(operation, ": piece ", i, " of ", piece.bytes,
                                                     " bytes at ", piece.offset, " of blocks of ",
                                                     args.block_stride_bytes));
    }
  }
  if (backend == Backend::kCuda) return absl::OkStatus();  // What is on the device cannot be seen.
  for (int64_t i = 0; i < args.block_count; ++i) {
    if (args.blocks[i] >= 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(operation, ": block ", args.blocks[i]));
  }
  return absl::OkStatus();
}

// copy(in the cache, packed, bytes), of every piece of every block.
template <typename Copy>
absl::Status Run(const char* operation, const KvCopyArgs& args, const Copy& copy,
                 int (*DeviceKernels::*on_device)(const KvCopyArgs&, const DeviceQueue&),
                 const ExecContext& ctx) {
  LYNX_RETURN_IF_ERROR(Validate(operation, args, ctx.backend));
  LYNX_RETURN_IF_ERROR(CheckUsable(ctx));
  if (args.block_count == 0) return absl::OkStatus();
  if (ctx.backend == Backend::kCuda) {
    return QueueOnDevice(operation, ctx.device->*on_device, args, ctx);
  }
  const int64_t packed_bytes = args.PackedBlockBytes();
  ForEach(ctx, args.block_count, [&](int64_t i) {
    std::byte* const block = args.kv + args.blocks[i] * args.block_stride_bytes;
    std::byte* packed = args.packed + i * packed_bytes;
    for (int p = 0; p < args.piece_count; ++p) {
      copy(block + args.pieces[p].offset, packed, static_cast<size_t>(args.pieces[p].bytes));
      packed += args.pieces[p].bytes;
    }
  });
  return absl::OkStatus();
}

}  // namespace

absl::Status KvGather(const KvCopyArgs& args, const ExecContext& ctx) {
  const auto copy = [](const std::byte* block, std::byte* packed, size_t bytes) {
    std::memcpy(packed, block, bytes);
  };
  return Run("KvGather", args, copy, &DeviceKernels::kv_gather, ctx);
}

absl::Status KvScatter(const KvCopyArgs& args, const ExecContext& ctx) {
  const auto copy = [](std::byte* block, const std::byte* packed, size_t bytes) {
    std::memcpy(block, packed, bytes);
  };
  return Run("KvScatter", args, copy, &DeviceKernels::kv_scatter, ctx);
}

}  // namespace lynx::kernels
