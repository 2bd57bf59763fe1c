// The emulated device: the contract of all devices, and the misuse that it has to find.
#include "tests/support/cuda_emulation/emulated_device.h"

#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/device_kernels.h"
#include "kernels/norm/rms_norm.h"
#include "tests/kernels/cuda/device_contract.h"
#include "tests/support/cuda_emulation/emulator.h"
#include "tests/support/status_matchers.h"

namespace lynx::kernels::testing {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::MakeEmulatedDevice;
using ::lynx::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<Device> Emulated() { return MakeEmulatedDevice(); }

INSTANTIATE_TEST_SUITE_P(Emulated, DeviceTest, ::testing::Values(DeviceCase{"Device", &Emulated}),
                         DeviceCaseName);

class EmulatedDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    cuda_emulation::SetOptions({.quiet = true});
    cuda_emulation::TakeError();
    ASSERT_THAT(device_->Use(), IsOk());
  }
  void TearDown() override {
    cuda_emulation::TakeError();
    cuda_emulation::SetOptions({});
  }

  const std::unique_ptr<Device> device_ = MakeEmulatedDevice(1 << 20);
  const std::unique_ptr<DeviceStream> stream_ = device_->MakeStream().value();
  DeviceBuffer memory_ = DeviceBuffer::Create(*device_, 300).value();
  const DeviceBuffer pinned_ = DeviceBuffer::CreateHost(*device_, 300).value();

  static auto Fault(const std::string& what) {
    return StatusIs(absl::StatusCode::kInternal, HasSubstr(what));
  }
};

TEST_F(EmulatedDeviceTest, WhatIsReadBeforeItsCopyWasSynchronisedIsNotThere) {
  ASSERT_THAT(stream_->Clear(memory_.data(), 300), IsOk());
  std::memset(pinned_.data(), 1, 300);
  ASSERT_THAT(stream_->CopyToHost(pinned_.data(), memory_.data(), 300), IsOk());
  EXPECT_EQ(pinned_.data()[7], std::byte{0xff});
  ASSERT_THAT(stream_->Synchronise(), IsOk());
  EXPECT_EQ(pinned_.data()[7], std::byte{0});
}

TEST_F(EmulatedDeviceTest, WhatIsWrittenBeforeItsCopyWasSynchronisedIsFound) {
  std::memset(pinned_.data(), 1, 300);
  ASSERT_THAT(stream_->CopyToDevice(memory_.data(), pinned_.data(), 300), IsOk());
  pinned_.data()[299] = std::byte{2};
  EXPECT_THAT(stream_->Synchronise(), Fault("host memory changed"));
}

TEST_F(EmulatedDeviceTest, AnotherStreamThatDoesNotWaitFindsOldBytes) {
  const auto other = device_->MakeStream().value();
  std::memset(pinned_.data(), 1, 300);
  ASSERT_THAT(stream_->CopyToDevice(memory_.data(), pinned_.data(), 300), IsOk());
  const auto result = DeviceBuffer::CreateHost(*device_, 300).value();
  ASSERT_THAT(other->CopyToHost(result.data(), memory_.data(), 300), IsOk());
  ASSERT_THAT(other->Synchronise(), IsOk());
  EXPECT_EQ(result.data()[0], std::byte{0xff});
  ASSERT_THAT(stream_->Synchronise(), IsOk());
}

TEST_F(EmulatedDeviceTest, CopiesOutOfBoundsOrOfFreedMemoryAreFound) {
  EXPECT_THAT(stream_->Clear(memory_.data() + 1, 300), Fault("no memory of the device"));
  EXPECT_THAT(stream_->Clear(pinned_.data(), 1), Fault("no memory of the device"));
  EXPECT_THAT(stream_->CopyToDevice(memory_.data(), pinned_.data() + 1, 300), Fault("not pinned"));
  std::byte on_stack[4] = {};
  EXPECT_THAT(stream_->CopyToHost(on_stack, memory_.data(), 4), Fault("not pinned"));
  std::byte* const freed = memory_.data();
  memory_ = DeviceBuffer();
  EXPECT_THAT(stream_->CopyToHost(pinned_.data(), freed, 4), Fault("no memory of the device"));
  device_->Free(freed);
  EXPECT_THAT(stream_->Synchronise(), Fault("no more, allocated"));
}

RmsNormArgs Norm(std::byte* x, std::byte* y) {
  auto* const from = reinterpret_cast<float*>(x);
  return {.x = from,
          .gain = from,
          .y = reinterpret_cast<float*>(y),
          .rows = 1,
          .hidden = 4,
          .x_stride = 4,
          .y_stride = 4};
}

TEST_F(EmulatedDeviceTest, AKernelThatWritesBehindItsMemoryIsFound) {
  const DeviceQueue queue{.stream = stream_->handle()};
  ASSERT_THAT(stream_->Clear(memory_.data(), 300), IsOk());
  EXPECT_EQ(device_->kernels().rms_norm(Norm(memory_.data(), memory_.data() + 288), queue), 0);
  memory_ = DeviceBuffer();
  EXPECT_THAT(stream_->Synchronise(), Fault("behind an allocation of 300"));
}

TEST_F(EmulatedDeviceTest, AThreadThatDoesNotUseTheDeviceLaunchesNothing) {
  std::thread([&] {
    const DeviceQueue queue{.stream = stream_->handle()};
    EXPECT_NE(device_->kernels().rms_norm(Norm(memory_.data(), memory_.data()), queue), 0);
    EXPECT_THAT(cuda_emulation::Faults(), ElementsAre(HasSubstr("uses another device")));
  }).join();
}

TEST_F(EmulatedDeviceTest, WhatIsNotFreedIsFound) {
  {
    const auto other = MakeEmulatedDevice();
    ASSERT_THAT(other->Allocate(8), IsOk());
  }
  EXPECT_NE(cuda_emulation::TakeError(), 0);
  EXPECT_THAT(cuda_emulation::Faults(), ElementsAre(HasSubstr("8 bytes of the device")));
}

TEST_F(EmulatedDeviceTest, TheHostThatTouchesDeviceMemoryDies) {
  EXPECT_DEATH(memory_.data()[0] = std::byte{1}, "");
}

TEST_F(EmulatedDeviceTest, AKernelThatTouchesWhatIsFarBehindOrFreedDies) {
  const DeviceQueue queue{.stream = stream_->handle()};
  const auto launch = [&](std::byte* x) {
    device_->kernels().rms_norm(Norm(x, memory_.data()), queue);
  };
  EXPECT_DEATH(launch(memory_.data() + 512), "");
  std::byte* const freed = DeviceBuffer::Create(*device_, 300).value().data();
  EXPECT_DEATH(launch(freed), "");
}

}  // namespace
}  // namespace lynx::kernels::testing
