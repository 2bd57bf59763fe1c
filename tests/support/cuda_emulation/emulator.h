#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

// Runs CUDA kernels on the CPU: every CUDA thread is a fiber of the calling thread, and a block's
// fibers take turns at barriers and warp operations.
//
// Found, and told by TakeError() and Faults():
//   - two threads of a block that touch the same byte of shared memory, one of them writing, with
//     no barrier between (needs the kernels compiled with -fsanitize=thread, whose calls
//     race_check.cc answers: RaceCheckWorks());
//   - shared memory read before anybody wrote it, or outside what the block has;
//   - data of an asynchronous copy read before the wait for it;
//   - threads that wait at different barriers, or at one that others have left for good;
//   - warp operations that not all named lanes reach, or that differ between lanes;
//   - misaligned wide accesses.
// A kernel without such faults must give the same bits for any order of threads and blocks: see
// Options.
//
// One launch at a time: callers wait for each other.
namespace lynx::cuda_emulation {

struct Options {
  // In which order threads, and blocks, have their turns: 0 ascending, 1 descending, else drawn.
  uint64_t order = 0;
  int resident_blocks = 1;  // Blocks that take turns with each other; the others wait for them.
  bool quiet = false;       // Faults are not written to stderr.
};
// For the launches from now on.
void SetOptions(const Options& options);

// 719 if a launch since the last call had a fault, else 0.
int TakeError();
// Its faults, and those of the launches after it, until TakeError() was called: at most 10.
std::vector<std::string> Faults();
bool RaceCheckWorks();
// Bytes of all asynchronous copies so far.
int64_t CopiedBytes();
// A fault outside of kernels, as theirs; `where` says of what.
void ReportFault(const char* where, std::string what);

// What a launch on a stream that is not null asks, which is one of these (emulated_device.h).
class Stream {
 public:
  virtual ~Stream() = default;
  // Calls `run` when it is its turn, before this returns or never: or keeps it, of a graph.
  virtual void Launch(const char* kernel, std::function<void()> run) = 0;
};

struct Index {
  unsigned x, y, z;
};

// --- For cuda_runtime.h ---

const Index& ThreadIdx();
const Index& BlockIdx();
const Index& BlockDim();
const Index& GridDim();

void RunGrid(const char* kernel, Index grid, Index block, size_t dynamic_shared,
             void (*body)(void*), void* context);

template <typename Body, typename... Args>
void Launch(const char* kernel, Index grid, Index block, size_t dynamic_shared, void* stream,
            const Body& body, Args... args) {
  const auto run = [=] {
    auto call = [&] { body(args...); };
    RunGrid(
        kernel, grid, block, dynamic_shared,
        [](void* context) { (*static_cast<decltype(call)*>(context))(); }, &call);
  };
  if (stream == nullptr) return run();
  static_cast<Stream*>(stream)->Launch(kernel, run);
}

void* StaticShared(const void* site, size_t size, size_t align);
void* DynamicShared();
void SyncThreads(const char* file, int line);

enum class WarpOp : uint8_t {
  kSync,
  kShuffle,
  kShuffleXor,
  kShuffleDown,
  kBallot,
  kMax,
  kMin,
  kAdd,
  kOr,
  kMma,
};
uint64_t WarpExchange(WarpOp op, unsigned mask, uint64_t value, int argument);

// What a lane gives to and takes from one mma.m16n8k16 of bf16 with float32 sums, as PTX lays its
// fragments out.
struct MmaFragments {
  uint32_t a[4];
  uint32_t b[2];
  float c[4];
};
void WarpMma(MmaFragments& fragments);

// 16 bytes that arrive no sooner than at a wait.
void CopyAsync16(void* shared, const void* global);
void CommitCopies();
void WaitForCopies(int groups_left);

// Lets others have their turn: of a thread that waits for them.
void Yield();

// `size` bytes at `address` are touched by the running thread.
enum class Access : uint8_t { kRead, kWrite, kAtomic };
void OnAccess(const void* address, size_t size, Access access);

template <typename T, typename Next>
[[gnu::no_sanitize("thread")]] T Atomic(T* to, const Next& next) {
  OnAccess(to, sizeof(T), Access::kAtomic);
  const T old = *to;
  *to = next(old);
  return old;
}
template <typename T>
[[gnu::no_sanitize("thread")]] T AtomicLoad(const T* from) {
  OnAccess(from, sizeof(T), Access::kAtomic);
  return *from;
}

}  // namespace lynx::cuda_emulation
