#pragma once

#include <cstdint>

#include "common/base/dtype.h"
#include "common/model/model_spec.h"

namespace lynx::model {

// What a ModelRunner keeps in memory, in bytes; the largest number for more than that.
struct MemoryNeed {
  int64_t weights = 0;  // Packed.
  int64_t kv = 0;
  int64_t steps = 0;  // What steps work in: activations, logits, attention, angles of RoPE.

  int64_t total() const;
};

// What a device has for it.
struct DeviceRoom {
  MemoryNeed need;      // Without KV, which may have what is left.
  int64_t free = 0;     // Bytes of the device now, whoever else uses it,
  int64_t reserve = 0;  // of which so many are left alone.

  int64_t left() const;  // 0 where there is too little already.
};

struct StepSizes {
  DType kv_dtype = DType::kBf16;
  int64_t kv_blocks = 0;
  int64_t rows = 0;         // Of each replica of attention,
  int64_t logits_rows = 0;  // and of these, too.
  int64_t replicas = 1;
  int64_t threads = 0;
};

MemoryNeed NeedOf(const ModelSpec& spec, int64_t weight_bytes, const StepSizes& sizes);

}  // namespace lynx::model
