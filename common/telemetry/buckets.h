#pragma once

#include <array>

// Histogram bounds. Every latency objective anyone is likely to pick is a bound, since an objective
// between two bounds cannot be measured.
namespace lynx::telemetry {

inline constexpr double kTtftSeconds[] = {.001, .005, .01, .02, .04, .06, .08, .1,  .2,
                                          .25,  .4,   .5,  .75, .8,  1,   2,   2.5, 4,
                                          5,    7.5,  10,  20,  40,  80,  160, 640, 2560};
inline constexpr double kInterTokenSeconds[] = {
    .002, .004, .006, .008, .01, .015, .02, .025, .03, .04, .05, .06, .075, .08, .1,
    .15,  .2,   .3,   .4,   .5,  .75,  1,   2.5,  5,   7.5, 10,  20,  40,   80};
inline constexpr double kRequestSeconds[] = {.1,  .2, .3,  .5,  .8,  1,   1.5,  2,
                                             2.5, 4,  5,   10,  15,  20,  30,   40,
                                             50,  60, 120, 240, 480, 960, 1920, 7680};
inline constexpr double kQueueSeconds[] = {.001, .005, .01, .05, .1,  .2,  .3, .5, .8,
                                           1,    1.5,  2,   2.5, 5,   10,  15, 20, 30,
                                           40,   50,   60,  120, 240, 480, 960};
inline constexpr double kStageSeconds[] = {.0005, .001, .0025, .005, .01, .025, .05, .1,
                                           .25,   .5,   1,     2.5,  5,   10,   30,  60};
inline constexpr double kTokens[] = {1,    2,    5,    10,    20,    50,    100,    200,   500,
                                     1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000};
inline constexpr double kStepTokens[] = {1,   8,    16,   32,   64,   128,  256,
                                         512, 1024, 2048, 4096, 8192, 16384};
inline constexpr double kBatch[] = {1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512};
inline constexpr double kTransferSeconds[] = {.001, .005, .01, .025, .05, .075, .1, .2,
                                              .3,   .5,   .75, 1,    2.5, 5,    10};
inline constexpr double kTransferBytes[] = {0x1p11, 0x1p13, 0x1p15, 0x1p17, 0x1p19, 0x1p21,
                                            0x1p23, 0x1p25, 0x1p27, 0x1p29, 0x1p31, 0x1p33};
inline constexpr double kTransferBytesPerSecond[] = {.1e9, .5e9, 1e9,   5e9,   10e9,
                                                     25e9, 50e9, 100e9, 200e9, 400e9};
inline constexpr double kExperts[] = {1,  2,  4,   8,   12,  16,  24,  32, 48,
                                      64, 96, 128, 160, 192, 256, 384, 512};
inline constexpr double kPlanSeconds[] = {1e-6, 2e-6, 5e-6, 1e-5, 2e-5,
                                          5e-5, 1e-4, 2e-4, 5e-4, 1e-3};
// Gate mass kept.
inline constexpr double kMass[] = {.5, .7, .8, .9, .95, .97, .98, .99, .995, .999, 1};
// Disconnect to last block freed: the contract is 100 ms plus a layer.
inline constexpr double kReleaseSeconds[] = {.001, .0025, .005, .01, .025, .05, .1,
                                             .15,  .2,    .5,   1,   5,    30};
inline constexpr double kKlNats[] = {1e-5, 1e-4, 3e-4, 1e-3, 3e-3, .01, .02,
                                     .05,  .1,   .2,   .5,   1,    2};

}  // namespace lynx::telemetry
