#include "tests/kernels/core/simd_probe.h"  // A library needs one source outside its bodies.
