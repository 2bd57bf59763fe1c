#include "tests/support/cuda_emulation/emulator.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/support/cuda_emulation/fiber.h"
#include "tests/support/cuda_emulation/shared_shadow.h"

namespace lynx::cuda_emulation {
namespace {

constexpr size_t kMaxThreads = 1024;
constexpr size_t kMaxStaticShared = 48 << 10;
constexpr size_t kMaxShared = 227 << 10;  // Of a block, from sm_90 on.
constexpr size_t kMaxFaults = 10;
// Turns in a row in which no thread did more than wait for others, until they are thought to wait
// for ever.
constexpr int kMaxIdleRounds = 10000;

enum class State : uint8_t { kReady, kBarrier, kWarp, kDone };

struct AsyncCopy {
  std::byte* to;
  const std::byte* from;
};

struct Block;

struct Thread {
  Fiber fiber;
  Block* block = nullptr;
  Index index = {};
  ThreadClock clock;
  State state = State::kReady;
  bool yielded = false;
  // Where it waits.
  const char* file = nullptr;
  int line = 0;
  WarpOp op = {};
  unsigned mask = 0;
  uint64_t value = 0;
  int argument = 0;
  std::vector<AsyncCopy> copies;   // Of all groups, oldest first ...
  std::vector<size_t> copy_group;  // ... and how many of them are in each that is committed.
};

struct SharedVariable {
  const void* site;
  std::byte* at;
};

struct Block {
  Index index = {};
  std::vector<std::unique_ptr<Thread>> threads;  // The first `count` are of this block.
  unsigned count = 0;
  unsigned waiting = 0;  // At the barrier.
  unsigned left = 0;     // Done.
  unsigned warp_done[kMaxThreads / 32] = {};
  std::vector<std::byte> memory;
  size_t dynamic = 0;
  size_t used = 0;
  std::vector<SharedVariable> variables;
  SharedShadow shadow;
};

struct Emulator {
  std::mutex mutex;
  Options options;
  std::vector<std::string> faults;
  int error = 0;
  int64_t copied_bytes = 0;

  const char* kernel = nullptr;
  Index grid = {};
  Index dim = {};
  void (*body)(void*) = nullptr;
  void* context = nullptr;
  std::vector<std::unique_ptr<Block>> blocks;  // Resident ones.
  Thread* running = nullptr;
  Fiber scheduler;
  bool failed = false;  // The launch is given up.
};

Emulator& Emu() {
  static Emulator emulator;
  return emulator;
}

void Report(const std::string& what) {
  Emulator& emu = Emu();
  if (emu.error == 0) emu.faults.clear();
  emu.error = 719;
  if (emu.faults.size() >= kMaxFaults) return;
  std::string text = std::string(emu.kernel == nullptr ? "?" : emu.kernel);
  if (emu.running != nullptr) {
    const Index& block = emu.running->block->index;
    const Index& thread = emu.running->index;
    text += absl::StrFormat(", block (%d, %d, %d), thread (%d, %d, %d)", block.x, block.y, block.z,
                            thread.x, thread.y, thread.z);
  }
  text += ": " + what;
  if (!emu.options.quiet) std::fprintf(stderr, "CUDA emulation: %s\n", text.c_str());
  emu.faults.push_back(std::move(text));
}

// Of a fault after which the kernel cannot go on. Does not return.
[[noreturn]] void GiveUp(std::string&& what) {
  Report(std::exchange(what, {}));  // Nothing on this stack will be destroyed.
  Emu().failed = true;
  SwitchFiber(Emu().running->fiber, Emu().scheduler);
  std::abort();
}

void Pause() { SwitchFiber(Emu().running->fiber, Emu().scheduler); }

void RunThread() {
  Emulator& emu = Emu();
  emu.body(emu.context);
  Thread& thread = *emu.running;
  if (!thread.copies.empty()) Report("ends with asynchronous copies that nobody waited for");
  thread.state = State::kDone;
  Block& block = *thread.block;
  ++block.left;
  const unsigned at = thread.clock.thread;
  block.warp_done[at / 32] |= 1u << (at % 32);
  SwitchFiberForGood(thread.fiber, emu.scheduler);
}

void StartBlock(Block& block, Index index) {
  Emulator& emu = Emu();
  block.index = index;
  block.count = emu.dim.x * emu.dim.y * emu.dim.z;
  block.waiting = block.left = 0;
  std::ranges::fill(block.warp_done, 0u);
  block.variables.clear();
  block.used = (block.dynamic + 15) / 16 * 16;
  block.memory.resize(kMaxShared);
  block.shadow.Reset(block.memory.data(), block.memory.size(), block.dynamic);
  std::memset(block.memory.data(), 0xcd, block.used);
  while (block.threads.size() < block.count) block.threads.push_back(std::make_unique<Thread>());
  for (unsigned i = 0; i < block.count; ++i) {
    Thread& thread = *block.threads[i];
    thread.block = &block;
    thread.index = {i % emu.dim.x, i / emu.dim.x % emu.dim.y, i / emu.dim.x / emu.dim.y};
    thread.clock = {.thread = static_cast<uint16_t>(i)};
    thread.state = State::kReady;
    thread.copies.clear();
    thread.copy_group.clear();
    StartFiber(thread.fiber, &RunThread);
  }
}

std::string WhoWaits(const Block& block) {
  std::string text;
  int told = 0;
  for (unsigned i = 0; i < block.count && told < 4; ++i) {
    const Thread& thread = *block.threads[i];
    if (thread.state == State::kBarrier) {
      text += absl::StrFormat(" thread %d at the barrier of %s:%d;", i, thread.file, thread.line);
      ++told;
    } else if (thread.state == State::kWarp) {
      text += absl::StrFormat(" thread %d in a warp operation of lanes %#x;", i, thread.mask);
      ++told;
    }
  }
  return text;
}

std::vector<unsigned> Order(unsigned count, uint64_t order, uint64_t salt) {
  std::vector<unsigned> all(count);
  for (unsigned i = 0; i < count; ++i) all[i] = order == 1 ? count - 1 - i : i;
  if (order > 1) {
    std::mt19937_64 rng(order * 1000003 + salt);
    std::ranges::shuffle(all, rng);
  }
  return all;
}

void ReleaseBarrier(Block& block) {
  block.waiting = 0;
  block.shadow.NextInterval();
  for (unsigned i = 0; i < block.count; ++i) {
    if (block.threads[i]->state == State::kBarrier) block.threads[i]->state = State::kReady;
  }
}

// m16n8k16: row g of A and C, column t; g = lane / 4, t = lane % 4.
void Multiply(MmaFragments* const lanes[32]) {
  const auto bf16 = [](uint32_t pair, int high) {
    return std::bit_cast<float>(high != 0 ? pair & 0xffff0000u : pair << 16);
  };
  float a[16][16], b[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int half = 0; half < 2; ++half) {
      for (int i = 0; i < 4; ++i) {
        a[g + i % 2 * 8][2 * t + i / 2 * 8 + half] = bf16(lanes[lane]->a[i], half);
      }
      for (int i = 0; i < 2; ++i) b[2 * t + i * 8 + half][g] = bf16(lanes[lane]->b[i], half);
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      double sum = 0;  // Products are exact, and hardware keeps more than float32 within a step.
      for (int k = 0; k < 16; ++k) sum += double{a[row][k]} * double{b[k][column]};
      lanes[lane]->c[i] = static_cast<float>(double{lanes[lane]->c[i]} + sum);
    }
  }
}

// All lanes of `mask` have come: gives each its result.
void FinishWarp(Thread* const lanes[32], unsigned mask, WarpOp op) {
  uint64_t values[32] = {};
  uint64_t all = op == WarpOp::kMin ? ~uint64_t{0} : 0;
  uint32_t clock = 0;
  for (int i = 0; i < 32; ++i) {
    if ((mask >> i & 1) == 0) continue;
    const uint64_t value = values[i] = lanes[i]->value;
    clock = std::max(clock, lanes[i]->clock.warp);
    if (op == WarpOp::kBallot) all |= value << i;
    if (op == WarpOp::kOr) all |= value;
    if (op == WarpOp::kAdd) all = static_cast<uint32_t>(all + value);
    if (op == WarpOp::kMax) all = std::max(all, value);
    if (op == WarpOp::kMin) all = std::min(all, value);
  }
  if (op == WarpOp::kMma) {
    MmaFragments* fragments[32];
    for (int i = 0; i < 32; ++i) fragments[i] = reinterpret_cast<MmaFragments*>(values[i]);
    Multiply(fragments);
  }
  for (int i = 0; i < 32; ++i) {
    if ((mask >> i & 1) == 0) continue;
    Thread& lane = *lanes[i];
    int from = i;
    if (op == WarpOp::kShuffle) from = lane.argument;
    if (op == WarpOp::kShuffleXor) from = i ^ lane.argument;
    if (op == WarpOp::kShuffleDown) from = i + lane.argument < 32 ? i + lane.argument : i;
    const bool shuffle =
        op == WarpOp::kShuffle || op == WarpOp::kShuffleXor || op == WarpOp::kShuffleDown;
    if (shuffle && (mask >> from & 1) == 0) {
      Report(absl::StrFormat("lane %d takes a value of lane %d, which takes no part", i, from));
      from = i;
    }
    lane.value = shuffle ? values[from] : all;
    lane.clock.warp = clock + 1;
    lane.state = State::kReady;
  }
}

// Threads of `block` have turns until all of them wait. False: none had anything to do.
bool RunBlock(Block& block, const std::vector<unsigned>& order, bool& busy) {
  Emulator& emu = Emu();
  bool moved = false;
  for (unsigned i : order) {
    Thread& thread = *block.threads[i];
    if (thread.state != State::kReady) continue;
    moved = true;
    thread.yielded = false;
    emu.running = &thread;
    SwitchFiber(emu.scheduler, thread.fiber);
    emu.running = nullptr;
    busy |= !thread.yielded;
    if (emu.failed) return true;
    if (block.waiting > 0 && block.left > 0) {
      Report("some threads have left the kernel while others wait:" + WhoWaits(block));
      emu.failed = true;
      return true;
    }
  }
  return moved;
}

void RunAll() {
  Emulator& emu = Emu();
  const unsigned total = emu.grid.x * emu.grid.y * emu.grid.z;
  const unsigned threads = emu.dim.x * emu.dim.y * emu.dim.z;
  const std::vector<unsigned> blocks = Order(total, emu.options.order, 1);
  const std::vector<unsigned> order = Order(threads, emu.options.order, 2);
  const size_t most = std::max(1, emu.options.resident_blocks);
  std::vector<Block*> resident;
  std::vector<Block*> free;
  for (auto& block : emu.blocks) free.push_back(block.get());
  unsigned next = 0;
  int idle = 0;
  while (next < total || !resident.empty()) {
    while (next < total && resident.size() < most) {
      const unsigned at = blocks[next++];
      StartBlock(*free.back(),
                 {at % emu.grid.x, at / emu.grid.x % emu.grid.y, at / emu.grid.x / emu.grid.y});
      resident.push_back(free.back());
      free.pop_back();
    }
    bool moved = false, busy = false;
    for (Block* block : resident) {
      moved |= RunBlock(*block, order, busy);
      if (emu.failed) return;
    }
    idle = busy ? 0 : idle + 1;
    if (!moved || idle > kMaxIdleRounds) {
      Report((moved ? "threads wait for what does not come:" : "threads wait for each other:") +
             WhoWaits(*resident.front()));
      return;
    }
    std::erase_if(resident, [&](Block* block) {
      if (block->left < block->count) return false;
      free.push_back(block);
      return true;
    });
  }
}

}  // namespace

void SetOptions(const Options& options) {
  const std::lock_guard lock(Emu().mutex);
  Emu().options = options;
}

int TakeError() { return std::exchange(Emu().error, 0); }

std::vector<std::string> Faults() { return Emu().faults; }

void ReportFault(const char* where, std::string what) {
  const std::lock_guard lock(Emu().mutex);
  Emu().kernel = where;
  Report(what);
}

const Index& ThreadIdx() { return Emu().running->index; }
const Index& BlockIdx() { return Emu().running->block->index; }
const Index& BlockDim() { return Emu().dim; }
const Index& GridDim() { return Emu().grid; }

void RunGrid(const char* kernel, Index grid, Index block, size_t dynamic_shared,
             void (*body)(void*), void* context) {
  Emulator& emu = Emu();
  const std::lock_guard lock(emu.mutex);
  emu.kernel = kernel;
  emu.failed = false;
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
  if (threads == 0 || threads > kMaxThreads || blocks == 0 || blocks >= uint64_t{1} << 31 ||
      grid.y > 65535 || grid.z > 65535 || dynamic_shared > kMaxShared) {
    Report(absl::StrFormat(
        "no launch: grid (%d, %d, %d), block (%d, %d, %d), %d bytes of shared memory", grid.x,
        grid.y, grid.z, block.x, block.y, block.z, dynamic_shared));
    return;
  }
  emu.grid = grid;
  emu.dim = block;
  emu.body = body;
  emu.context = context;
  while (static_cast<int>(emu.blocks.size()) < std::max(1, emu.options.resident_blocks)) {
    emu.blocks.push_back(std::make_unique<Block>());
  }
  for (auto& each : emu.blocks) each->dynamic = dynamic_shared;
  RunAll();
  emu.running = nullptr;
}

void* StaticShared(const void* site, size_t size, size_t align) {
  Block& block = *Emu().running->block;
  for (const SharedVariable& variable : block.variables) {
    if (variable.site == site) return variable.at;
  }
  align = std::max<size_t>(align, 4);
  block.used = (block.used + align - 1) / align * align;
  const size_t dynamic = (block.dynamic + 15) / 16 * 16;
  if (block.used + size - dynamic > kMaxStaticShared || block.used + size > kMaxShared) {
    GiveUp(absl::StrFormat("%d bytes of shared memory are too much", block.used + size));
  }
  std::byte* at = block.memory.data() + block.used;
  std::memset(at, 0xcd, size);
  block.shadow.Add(at, size);
  block.used += size;
  block.variables.push_back({site, at});
  return at;
}

void* DynamicShared() { return Emu().running->block->memory.data(); }

void SyncThreads(const char* file, int line) {
  Thread& thread = *Emu().running;
  Block& block = *thread.block;
  for (unsigned i = 0; block.waiting > 0 && i < block.count; ++i) {
    const Thread& other = *block.threads[i];
    if (other.state != State::kBarrier) continue;
    if (other.line != line || std::strcmp(other.file, file) != 0) {
      GiveUp(absl::StrFormat("divergent barrier: at %s:%d, while others are at %s:%d", file, line,
                             other.file, other.line));
    }
    break;
  }
  thread.file = file;
  thread.line = line;
  thread.state = State::kBarrier;
  if (++block.waiting == block.count) {
    ReleaseBarrier(block);
    return;
  }
  Pause();
}

uint64_t WarpExchange(WarpOp op, unsigned mask, uint64_t value, int argument) {
  Thread& thread = *Emu().running;
  Block& block = *thread.block;
  const unsigned at = thread.clock.thread;
  const unsigned first = at / 32 * 32;
  const unsigned lanes_there =
      block.count - first >= 32 ? 0xffffffffu : (1u << (block.count - first)) - 1;
  if (mask == 0xffffffffu) mask = lanes_there;
  if ((mask >> (at - first) & 1) == 0 || (mask & ~lanes_there) != 0) {
    GiveUp(absl::StrFormat("lane %d in a warp operation of lanes %#x", at - first, mask));
  }
  if ((mask & block.warp_done[first / 32]) != 0) {
    GiveUp(
        absl::StrFormat("a warp operation of lanes %#x, of which some have left the kernel", mask));
  }
  thread.op = op;
  thread.mask = mask;
  thread.value = value;
  thread.argument = argument;
  thread.state = State::kWarp;
  Thread* lanes[32] = {};
  bool all = true;
  for (unsigned i = 0; i < 32; ++i) {
    if ((mask >> i & 1) == 0) continue;
    lanes[i] = block.threads[first + i].get();
    if (lanes[i]->state != State::kWarp) {
      all = false;
    } else if (lanes[i]->mask != mask || lanes[i]->op != op) {
      GiveUp(absl::StrFormat("lanes of a warp differ: operation %d of lanes %#x, and %d of %#x",
                             static_cast<int>(op), mask, static_cast<int>(lanes[i]->op),
                             lanes[i]->mask));
    }
  }
  if (all) {
    FinishWarp(lanes, mask, op);
  } else {
    Pause();
  }
  return thread.value;
}

void WarpMma(MmaFragments& fragments) {
  WarpExchange(WarpOp::kMma, 0xffffffffu, reinterpret_cast<uint64_t>(&fragments), 0);
}

void CopyAsync16(void* shared, const void* global) {
  Thread& thread = *Emu().running;
  if ((reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(global)) % 16 != 0) {
    GiveUp("an asynchronous copy from or to no multiple of 16");
  }
  OnAccess(shared, 16, Access::kWrite);
  thread.block->shadow.SetInFlight(shared, 16, true);
  std::memset(shared, 0xcd, 16);
  Emu().copied_bytes += 16;
  thread.copies.push_back({static_cast<std::byte*>(shared), static_cast<const std::byte*>(global)});
}

int64_t CopiedBytes() { return Emu().copied_bytes; }

void CommitCopies() {
  Thread& thread = *Emu().running;
  size_t grouped = 0;
  for (size_t group : thread.copy_group) grouped += group;
  thread.copy_group.push_back(thread.copies.size() - grouped);
}

void WaitForCopies(int groups_left) {
  Thread& thread = *Emu().running;
  while (thread.copy_group.size() > static_cast<size_t>(groups_left)) {
    const auto count = static_cast<ptrdiff_t>(thread.copy_group.front());
    for (auto copy = thread.copies.begin(); copy != thread.copies.begin() + count; ++copy) {
      thread.block->shadow.SetInFlight(copy->to, 16, false);
      std::memcpy(copy->to, copy->from, 16);
      OnAccess(copy->to, 16, Access::kWrite);
    }
    thread.copies.erase(thread.copies.begin(), thread.copies.begin() + count);
    thread.copy_group.erase(thread.copy_group.begin());
  }
}

void Yield() {
  Emu().running->yielded = true;
  Pause();
}

void OnAccess(const void* address, size_t size, Access access) {
  Thread* const thread = Emu().running;
  // Of accesses to shared memory all are seen, or none.
  if (thread == nullptr || !RaceCheckWorks()) return;
  if (const char* fault = thread->block->shadow.Touch(thread->clock, address, size, access)) {
    Report(fault);
  }
}

}  // namespace lynx::cuda_emulation
