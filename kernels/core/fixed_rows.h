#pragma once

// For kernel bodies only.

namespace lynx::kernels::LYNX_KERNEL_ISA {

// fn<rows>(), for loops over rows that are unrolled. `rows` is in [1, kMost].
template <int kMost, typename Fn>
inline void WithFixedRows(int rows, const Fn& fn) {
  if (rows == kMost) return fn.template operator()<kMost>();
  if constexpr (kMost > 1) WithFixedRows<kMost - 1>(rows, fn);
}

}  // namespace lynx::kernels::LYNX_KERNEL_ISA
