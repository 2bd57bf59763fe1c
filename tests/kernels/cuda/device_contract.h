#pragma once

#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "kernels/core/device.h"

namespace lynx::kernels::testing {

struct DeviceCase {
  std::string name;
  // Null where there is none, and then the test is skipped.
  std::unique_ptr<Device> (*make)();
};

// What kernels/core/device.h promises of each.
class DeviceTest : public ::testing::TestWithParam<DeviceCase> {
 protected:
  void SetUp() override;

  std::unique_ptr<Device> device_;
};

inline std::string DeviceCaseName(const ::testing::TestParamInfo<DeviceCase>& info) {
  return info.param.name;
}

}  // namespace lynx::kernels::testing
