#pragma once

// What the tests of kernels share: the contexts to run, random inputs, canaries.

#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "common/base/dtype.h"
#include "gtest/gtest.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/float_convert.h"
#include "tests/support/test_size.h"

namespace lynx::testing {

inline constexpr float kCanary = -12345.0f;  // Fills the gaps between rows; must survive.

// Every way a kernel can run on some machine.
inline const std::vector<kernels::ExecContext>& AllContexts() {
  using kernels::Backend;
  using kernels::Isa;
  static const auto contexts = [] {
    std::vector<kernels::ExecContext> all;
    all.push_back({.backend = Backend::kReference, .isa = Isa::kPortable});
    for (Isa isa : kernels::kAllIsas) all.push_back({.backend = Backend::kCpu, .isa = isa});
    return all;
  }();
  return contexts;
}

inline std::string ContextName(const kernels::ExecContext& ctx) {
  if (ctx.backend == kernels::Backend::kReference) return "reference";
  if (ctx.backend == kernels::Backend::kCuda) return "cuda_emulated";
  return std::string(kernels::Name(ctx.isa));
}

inline std::string ContextParamName(const ::testing::TestParamInfo<kernels::ExecContext>& param) {
  return ContextName(param.param);
}

// Fixture of a test that runs once per context. Skips, visibly, what this machine lacks; where
// LYNX_REQUIRE_BACKEND names the context, a skip is a failure: "all green" cannot mean "nothing
// ran".
class KernelTest : public ::testing::TestWithParam<kernels::ExecContext> {
 protected:
  void SetUp() override {
    if (kernels::CheckUsable(GetParam()).ok()) return;
    const char* required = std::getenv("LYNX_REQUIRE_BACKEND");
    ASSERT_FALSE(required != nullptr && ContextName(GetParam()) == required)
        << "required backend is not usable";
    GTEST_SKIP() << ContextName(GetParam()) << " is not usable here";
  }
  // Whether an operation can refuse what its arguments point at: not what is on a device.
  bool SeesContents() const { return GetParam().backend != kernels::Backend::kCuda; }
  // For SetUp() of tests that fibers take long for: not in the short form.
  void SkipIfEmulatedInShort() const {
    if (IsEmulated() && ForTestSize(true, false, false)) GTEST_SKIP() << "takes long";
  }
  // Whether fibers do the work: tests then make do with less.
  bool IsEmulated() const { return GetParam().backend == kernels::Backend::kCuda; }
  bool IsReference() const { return GetParam().backend == kernels::Backend::kReference; }
  static kernels::ExecContext Reference() { return AllContexts().front(); }
};

inline std::vector<float> RandomNormal(size_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& v : values) v = normal(rng);
  return values;
}

// Puts `rows` rows of `width` values `stride` apart, canaries between.
inline std::vector<float> WithGaps(const std::vector<float>& values, size_t rows, size_t width,
                                   size_t stride) {
  std::vector<float> out(rows * stride, kCanary);
  for (size_t i = 0; i < rows * width; ++i) out[i / width * stride + i % width] = values[i];
  return out;
}

// The bytes of `values` in another element type, as a file would hold them.
inline std::vector<std::byte> Encode(const std::vector<float>& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * SizeOf(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t half =
        dtype == DType::kF16 ? kernels::F32ToF16(values[i]) : kernels::F32ToBf16(values[i]);
    if (dtype == DType::kF32) {
      std::memcpy(&bytes[i * 4], &values[i], 4);
    } else {
      std::memcpy(&bytes[i * 2], &half, 2);
    }
  }
  return bytes;
}

// The values of elements as a file holds them.
inline std::vector<float> Decode(const std::vector<std::byte>& bytes, DType dtype) {
  std::vector<float> values(bytes.size() / SizeOf(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t half;
    switch (dtype) {
      case DType::kF32:
        std::memcpy(&values[i], &bytes[i * 4], 4);
        break;
      case DType::kBf16:
        std::memcpy(&half, &bytes[i * 2], 2);
        values[i] = kernels::Bf16ToF32(half);
        break;
      case DType::kF16:
        std::memcpy(&half, &bytes[i * 2], 2);
        values[i] = kernels::F16ToF32(half);
        break;
    }
  }
  return values;
}

inline std::vector<uint32_t> BitsOf(const std::vector<float>& values) {
  std::vector<uint32_t> bits(values.size());
  std::memcpy(bits.data(), values.data(), values.size() * sizeof(float));
  return bits;
}

inline std::vector<float> RoundedToBf16(std::vector<float> values) {
  for (float& v : values) v = kernels::RoundToBf16(v);
  return values;
}

}  // namespace lynx::testing
