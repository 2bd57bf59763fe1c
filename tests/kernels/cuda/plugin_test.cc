// The CUDA plug-in: that it loads anywhere and says what there is, and the contract of its ranks
// where there are GPUs.
#include <memory>
#include <string>

#include "common/collective/memory_rendezvous.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/load_plugin.h"
#include "tests/common/collective/communicator_contract.h"
#include "tests/kernels/cuda/device_contract.h"
#include "tests/support/status_matchers.h"

namespace lynx::cuda {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::AnyOf;
using ::testing::HasSubstr;

Plugin& Loaded() {
  static Plugin* const plugin = LoadPlugin(LYNX_CUDA_PLUGIN).value();
  return *plugin;
}

int Gpus() { return Loaded().Devices().value_or(0); }

TEST(CudaPluginTest, LoadsWhereThereIsNoDriverToo) {
  ASSERT_THAT(LoadPlugin(LYNX_CUDA_PLUGIN).status(), IsOk());
  const absl::StatusOr<int> gpus = Loaded().Devices();
  if (gpus.ok()) {
    EXPECT_GT(*gpus, 0);
  } else {
    EXPECT_THAT(gpus.status(), StatusIs(absl::StatusCode::kUnavailable,
                                        AnyOf(HasSubstr("driver"), HasSubstr("no GPU"),
                                              HasSubstr("no CUDA-capable device"))));
  }
}

#if defined(LYNX_CUDA_KERNELS)
TEST(CudaPluginTest, HasTheKernels) { EXPECT_NE(Loaded().Kernels().rms_norm, nullptr); }
#endif

TEST(CudaPluginTest, WithoutAGpuNoRanksConnect) {
  collective::MemoryRendezvous rendezvous;
  EXPECT_THAT(Loaded().ConnectRanks({.rank = 0, .size = 1, .device = Gpus()}, rendezvous).status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("taking GPU")));
  for (const RankOptions& wrong :
       {RankOptions{.rank = 2, .size = 2}, RankOptions{.rank = -1}, RankOptions{.size = 0}}) {
    EXPECT_THAT(Loaded().ConnectRanks(wrong, rendezvous).status(),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

TEST(CudaPluginTest, AGpuThatIsNotThereIsNotOpened) {
  for (const int index : {-1, Gpus()}) {
    EXPECT_THAT(Loaded().OpenDevice(index).status(),
                StatusIs(absl::StatusCode::kUnavailable,
                         AnyOf(HasSubstr("no GPU"), HasSubstr("counting GPUs"))));
  }
}

TEST(CudaPluginTest, WhatIsNoPluginIsRefused) {
  EXPECT_THAT(LoadPlugin("/no/such/liblynx_cuda.so").status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/no/such/liblynx_cuda.so")));
  EXPECT_THAT(LoadPlugin("plugin_that_is_not_there.so").status(),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(LoadPlugin("/lib/x86_64-linux-gnu/libm.so.6").status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no CUDA plug-in")));
}

}  // namespace
}  // namespace lynx::cuda

namespace lynx::collective::testing {
namespace {

Group MakeNccl(int size, absl::Duration timeout) {
  Group group(static_cast<size_t>(size));
  MemoryRendezvous rendezvous;
  OnEachRank(size, [&](int rank) {
    auto made = cuda::Loaded().ConnectRanks(
        {.rank = rank, .size = size, .device = rank, .timeout = timeout}, rendezvous);
    ASSERT_THAT(made.status(), lynx::testing::IsOk());
    group[static_cast<size_t>(rank)] = *std::move(made);
  });
  return group;
}

INSTANTIATE_TEST_SUITE_P(Cuda, CommunicatorTest,
                         ::testing::Values(Case{"Nccl", 1, &MakeNccl, &cuda::Gpus},
                                           Case{"Nccl", 2, &MakeNccl, &cuda::Gpus}),
                         CaseName);

}  // namespace
}  // namespace lynx::collective::testing

namespace lynx::kernels::testing {
namespace {

std::unique_ptr<Device> FirstGpu() {
  if (cuda::Gpus() == 0) return nullptr;
  return cuda::Loaded().OpenDevice(0).value();
}

INSTANTIATE_TEST_SUITE_P(Cuda, DeviceTest, ::testing::Values(DeviceCase{"Device", &FirstGpu}),
                         DeviceCaseName);

}  // namespace
}  // namespace lynx::kernels::testing
