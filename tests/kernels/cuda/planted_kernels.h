#pragma once

// Kernels with and without a fault, for the tests of the emulator. All add up `values` of one block
// of `threads` threads into *sum, unless said otherwise.
namespace lynx::testing {

enum class Planted {
  kNothing,           // Correct.
  kMissingBarrier,    // Between the writes of partial sums and their reads.
  kMissingSecond,     // Of two barriers around memory that is used again.
  kMissingWarpSync,   // Between lanes of one warp.
  kDivergentBarrier,  // Halves of the block wait at different ones.
  kEarlyExit,         // Some threads leave while others wait.
  kUnwritten,         // Shared memory that nobody wrote is read.
  kOutside,           // One element too far. With 256 threads.
  kMissingWait,       // For an asynchronous copy.
  kDivergentShuffle,  // Half of the lanes take no part.
  kEndlessWait,       // For a block that never comes.
};
int RunPlanted(Planted fault, const float* values, int threads, float* sum);

// Warp operations, one result a lane each: shuffles, votes, reductions.
struct WarpResults {
  unsigned shuffled[32], crossed[32], down[32], ballot[32], most[32], least[32], added[32];
};
int RunWarpOperations(const unsigned* values, WarpResults* results);

// c[16, 8] = a[16, 16] b[16, 8] by one mma, whose fragments are laid out as PTX says.
int RunMma(const float* a, const float* b, float* c);

// `blocks` blocks count themselves; the last to come writes how many there were.
int RunLastBlock(int blocks, unsigned* counter, unsigned* result);

}  // namespace lynx::testing
