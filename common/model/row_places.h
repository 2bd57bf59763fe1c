#pragma once

#include <cstdint>
#include <span>

#include "kernels/attention/paged_attention_args.h"
#include "kernels/kv/kv_write_args.h"

namespace lynx::model {

// Where the rows of one step stand, for one layer. All spans have one entry a row.
struct RowPlaces {
  std::span<const int32_t> positions;
  std::span<const kernels::AttentionRow> attention;
  std::span<const kernels::KvSlot> slots;
};

}  // namespace lynx::model
