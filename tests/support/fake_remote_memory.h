#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/check.h"
#include "common/kv/kv_arena.h"

namespace lynx::testing {

// Memory whose addresses the host cannot use: it faults. Copies fail once told to.
class FakeRemoteMemory final : public kv::RemoteMemory {
 public:
  explicit FakeRemoteMemory(size_t bytes) : bytes_(bytes) {}

  std::byte* data() override { return reinterpret_cast<std::byte*>(kBase); }
  absl::Status Read(std::span<const Piece> from, std::byte* to) override {
    for (const Piece& piece : from) to = std::copy_n(Host(piece), piece.bytes, to);
    return read_status;
  }
  absl::Status Write(const std::byte* from, std::span<const Piece> to) override {
    for (const Piece& piece : to) {
      std::copy_n(from, piece.bytes, Host(piece));
      from += piece.bytes;
    }
    return write_status;
  }

  absl::Status read_status, write_status;  // Of all calls.

 private:
  static constexpr uintptr_t kBase = uintptr_t{1} << 62;  // No address of any process.
  std::byte* Host(const Piece& piece) {
    const size_t at = reinterpret_cast<uintptr_t>(piece.at) - kBase;
    LYNX_CHECK(at + piece.bytes <= bytes_.size());
    return bytes_.data() + at;
  }

  std::vector<std::byte> bytes_;
};

// An arena in one; `memory` is told which, unless null.
inline absl::StatusOr<std::unique_ptr<kv::KvArena>> MakeRemoteArena(
    const kv::KvLayout& layout, int32_t blocks, FakeRemoteMemory** memory = nullptr) {
  return kv::KvArena::CreateRemote(layout, blocks, [memory](size_t bytes) {
    auto made = std::make_unique<FakeRemoteMemory>(bytes);
    if (memory != nullptr) *memory = made.get();
    return absl::StatusOr<std::unique_ptr<kv::RemoteMemory>>(std::move(made));
  });
}

// A block in one layer, wherever it is.
inline std::vector<std::byte> ReadBlock(kv::KvArena& arena, int32_t layer, kv::BlockId block) {
  std::vector<std::byte> bytes(static_cast<size_t>(arena.layout().BlockLayerBytes()));
  const kv::KvArena::Part part = arena.WholeBlock(layer, block);
  LYNX_CHECK(arena.Read({&part, 1}, bytes.data()).ok());
  return bytes;
}
inline void WriteBlock(kv::KvArena& arena, int32_t layer, kv::BlockId block,
                       std::span<const std::byte> bytes) {
  const kv::KvArena::Part part = arena.WholeBlock(layer, block);
  LYNX_CHECK(std::ssize(bytes) == part.bytes);
  LYNX_CHECK(arena.Write(bytes.data(), {&part, 1}).ok());
}

}  // namespace lynx::testing
