#include "tests/kernels/cuda/device_contract.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "kernels/norm/rms_norm.h"
#include "tests/support/status_matchers.h"

namespace lynx::kernels::testing {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Pointwise;

void DeviceTest::SetUp() {
  device_ = GetParam().make();
  if (device_ == nullptr) GTEST_SKIP() << "no such device here";
  ASSERT_THAT(device_->Use(), IsOk());
}

namespace {

constexpr size_t kCount = 1000;
constexpr size_t kBytes = kCount * sizeof(float);

// Floats of the device, and of the host for it.
struct Floats {
  explicit Floats(Device& owner)
      : device(DeviceBuffer::Create(owner, kBytes).value()),
        host(DeviceBuffer::CreateHost(owner, kBytes).value()) {}

  std::span<float> values() const { return {reinterpret_cast<float*>(host.data()), kCount}; }
  void Fill(float first) const {
    for (size_t i = 0; i < kCount; ++i) values()[i] = first + static_cast<float>(i);
  }
  absl::Status Up(DeviceStream& stream) const {
    return stream.CopyToDevice(device.data(), host.data(), kBytes);
  }
  absl::Status Down(DeviceStream& stream) const {
    return stream.CopyToHost(host.data(), device.data(), kBytes);
  }
  float* on_device() const { return reinterpret_cast<float*>(device.data()); }

  DeviceBuffer device;
  DeviceBuffer host;
};

// y = x / sqrt(mean of squares) in rows of 10, as a kernel of the device.
absl::Status Normalise(Device& device, DeviceStream& stream, const Floats& x, const Floats& gain,
                       const Floats& y) {
  return RmsNorm({.x = x.on_device(),
                  .gain = gain.on_device(),
                  .y = y.on_device(),
                  .rows = kCount / 10,
                  .hidden = 10,
                  .x_stride = 10,
                  .y_stride = 10,
                  .epsilon = 1e-6f},
                 {.backend = Backend::kCuda,
                  .device = &device.kernels(),
                  .queue = {.stream = stream.handle()}});
}

TEST_P(DeviceTest, SaysWhatItIs) {
  EXPECT_FALSE(device_->info().name.empty());
  EXPECT_GE(device_->info().index, 0);
  EXPECT_GT(device_->info().major, 0);
  const auto memory = device_->Memory();
  ASSERT_THAT(memory, IsOk());
  EXPECT_GT(memory->free, 0);
  EXPECT_LE(memory->free, memory->total);
}

TEST_P(DeviceTest, CopiesRunInTheOrderOfTheirStream) {
  const auto stream = device_->MakeStream().value();
  const Floats a(*device_), b(*device_);
  a.Fill(1);
  ASSERT_THAT(a.Up(*stream), IsOk());
  ASSERT_THAT(stream->CopyOnDevice(b.device.data(), a.device.data(), kBytes), IsOk());
  ASSERT_THAT(stream->Clear(a.device.data(), kBytes), IsOk());
  ASSERT_THAT(b.Down(*stream), IsOk());
  ASSERT_THAT(stream->Synchronise(), IsOk());
  EXPECT_THAT(b.values(), Pointwise(::testing::Eq(), a.values()));
  ASSERT_THAT(a.Down(*stream), IsOk());
  ASSERT_THAT(stream->Synchronise(), IsOk());
  EXPECT_THAT(a.values(), Each(0.0f));
}

TEST_P(DeviceTest, CopiesOfPartsTouchNothingElse) {
  const auto stream = device_->MakeStream().value();
  const Floats a(*device_);
  a.Fill(0);
  ASSERT_THAT(a.Up(*stream), IsOk());
  ASSERT_THAT(stream->Clear(a.device.data() + 4, 8), IsOk());
  ASSERT_THAT(stream->Synchronise(), IsOk());
  ASSERT_THAT(a.Down(*stream), IsOk());
  ASSERT_THAT(stream->Synchronise(), IsOk());
  EXPECT_THAT(a.values().first(4), ::testing::ElementsAre(0.0f, 0.0f, 0.0f, 3.0f));
  EXPECT_EQ(a.values().back(), kCount - 1);
}

TEST_P(DeviceTest, KernelsRunBetweenTheCopiesAroundThem) {
  if (device_->kernels().rms_norm == nullptr) GTEST_SKIP() << "built without kernels";
  const auto stream = device_->MakeStream().value();
  const Floats x(*device_), gain(*device_), y(*device_);
  x.Fill(1);
  std::ranges::fill(gain.values(), 2.0f);
  ASSERT_THAT(x.Up(*stream), IsOk());
  ASSERT_THAT(gain.Up(*stream), IsOk());
  ASSERT_THAT(Normalise(*device_, *stream, x, gain, y), IsOk());
  ASSERT_THAT(y.Down(*stream), IsOk());
  ASSERT_THAT(stream->Synchronise(), IsOk());
  double squares = 0;
  for (int i = 1; i <= 10; ++i) squares += i * i / 10.0;
  EXPECT_NEAR(y.values()[9], 2 * 10 / std::sqrt(squares), 1e-5);
}

TEST_P(DeviceTest, AStreamWaitsForAnEventOfAnother) {
  const auto first = device_->MakeStream().value();
  const auto second = device_->MakeStream().value();
  const auto event = device_->MakeEvent().value();
  EXPECT_THAT(event->Synchronise(), IsOk());  // Never recorded.
  const Floats a(*device_), b(*device_);
  ASSERT_THAT(first->Clear(a.device.data(), kBytes), IsOk());
  ASSERT_THAT(first->Synchronise(), IsOk());
  for (const float value : {3.0f, 5.0f}) {  // Recorded again.
    a.Fill(value);
    ASSERT_THAT(a.Up(*first), IsOk());
    ASSERT_THAT(first->Record(*event), IsOk());
    ASSERT_THAT(second->Wait(*event), IsOk());
    ASSERT_THAT(second->CopyOnDevice(b.device.data(), a.device.data(), kBytes), IsOk());
    ASSERT_THAT(b.Down(*second), IsOk());
    ASSERT_THAT(second->Synchronise(), IsOk());
    ASSERT_THAT(event->Synchronise(), IsOk());
    EXPECT_EQ(b.values().front(), value);
  }
}

TEST_P(DeviceTest, AnEventBringsWhatWasCopiedBeforeIt) {
  const auto stream = device_->MakeStream().value();
  const auto event = device_->MakeEvent().value();
  const Floats a(*device_), b(*device_);
  a.Fill(7);
  ASSERT_THAT(a.Up(*stream), IsOk());
  ASSERT_THAT(stream->CopyToHost(b.host.data(), a.device.data(), kBytes), IsOk());
  ASSERT_THAT(stream->Record(*event), IsOk());
  ASSERT_THAT(stream->Clear(a.device.data(), kBytes), IsOk());
  ASSERT_THAT(event->Synchronise(), IsOk());
  EXPECT_THAT(b.values(), Pointwise(::testing::Eq(), a.values()));
  ASSERT_THAT(stream->Synchronise(), IsOk());
}

TEST_P(DeviceTest, AGraphRepeatsItsWorkWithWhatMemoryHoldsThen) {
  if (device_->kernels().rms_norm == nullptr) GTEST_SKIP() << "built without kernels";
  const auto stream = device_->MakeStream().value();
  const Floats x(*device_), gain(*device_), y(*device_);
  std::ranges::fill(gain.values(), 1.0f);
  ASSERT_THAT(gain.Up(*stream), IsOk());
  ASSERT_THAT(stream->Clear(y.device.data(), kBytes), IsOk());
  x.Fill(0);
  ASSERT_THAT(x.Up(*stream), IsOk());
  ASSERT_THAT(stream->Synchronise(), IsOk());

  ASSERT_THAT(stream->BeginCapture(), IsOk());
  ASSERT_THAT(x.Up(*stream), IsOk());
  ASSERT_THAT(Normalise(*device_, *stream, x, gain, y), IsOk());
  const auto graph = stream->EndCapture();
  ASSERT_THAT(graph, IsOk());

  ASSERT_THAT(y.Down(*stream), IsOk());
  ASSERT_THAT(stream->Synchronise(), IsOk());
  EXPECT_THAT(y.values(), Each(0.0f)) << "capturing runs nothing";
  for (const float value : {3.0f, -2.0f}) {
    std::ranges::fill(x.values(), value);
    ASSERT_THAT(stream->Launch(**graph), IsOk());
    ASSERT_THAT(y.Down(*stream), IsOk());
    ASSERT_THAT(stream->Synchronise(), IsOk());
    EXPECT_THAT(y.values(), Each(::testing::FloatNear(std::copysign(1.0f, value), 1e-5f)));
  }
}

TEST_P(DeviceTest, WhatACaptureCannotHoldIsRefused) {
  const auto stream = device_->MakeStream().value();
  const auto event = device_->MakeEvent().value();
  const auto invalid = StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("captured"));
  EXPECT_THAT(stream->EndCapture().status(), invalid);
  ASSERT_THAT(stream->BeginCapture(), IsOk());
  EXPECT_THAT(stream->BeginCapture(), invalid);
  EXPECT_THAT(stream->Record(*event), invalid);
  EXPECT_THAT(stream->Wait(*event), invalid);
  EXPECT_THAT(stream->Synchronise(), invalid);
  EXPECT_THAT(stream->EndCapture(), IsOk());
  EXPECT_THAT(stream->Synchronise(), IsOk());
}

TEST_P(DeviceTest, MoreMemoryThanThereIsIsRefusedAndNoLastingFault) {
  const int64_t total = device_->Memory().value().total;
  EXPECT_THAT(device_->Allocate(static_cast<size_t>(total) + 1).status(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr(std::to_string(total + 1))));
  const auto stream = device_->MakeStream().value();
  const Floats a(*device_);
  ASSERT_THAT(stream->Clear(a.device.data(), kBytes), IsOk());
  EXPECT_THAT(stream->Synchronise(), IsOk());
}

TEST_P(DeviceTest, BuffersAreAlignedAndOwnedByOne) {
  auto a = DeviceBuffer::Create(*device_, 1).value();
  std::byte* const data = a.data();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 256, 0u);
  DeviceBuffer b = std::move(a);
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(a.data(), nullptr);  // NOLINT: moved from
  EXPECT_EQ(DeviceBuffer::Create(*device_, 0).value().data(), nullptr);
}

}  // namespace
}  // namespace lynx::kernels::testing
