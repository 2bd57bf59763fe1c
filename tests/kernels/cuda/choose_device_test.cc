#include "kernels/cuda/choose_device.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/load_plugin.h"
#include "kernels/cuda/plugin_layout.h"
#include "tests/support/status_matchers.h"

namespace lynx::cuda {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::IsNull;
using ::testing::NotNull;
using ::testing::StartsWith;

constexpr char kNoPlugin[] = "/no/such/liblynx_cuda.so";
constexpr char kOtherLibrary[] = "/lib/x86_64-linux-gnu/libm.so.6";

TEST(ChooseDeviceTest, NamesAreThoseOfTheOption) {
  for (const char* good : {"auto", "cpu", "cuda", "cuda:0", "cuda:7"}) {
    EXPECT_THAT(CheckDeviceName(good), IsOk()) << good;
  }
  for (const char* bad : {"", "gpu", "CUDA", "cuda:", "cuda:-1", "cuda:+1", "cuda: 1", "cuda:1x",
                          "cuda:1024", "cuda:99999999999", "cpu:0"}) {
    EXPECT_THAT(CheckDeviceName(bad), StatusIs(absl::StatusCode::kInvalidArgument,
                                               HasSubstr("wanted auto, cpu, cuda or cuda:N")))
        << bad;
    EXPECT_THAT(ChooseDevice(bad, LYNX_EMULATED_PLUGIN).status(),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

TEST(ChooseDeviceTest, TheCpusNeedNoPlugin) {
  const auto chosen = ChooseDevice("cpu", kNoPlugin);
  ASSERT_THAT(chosen, IsOk());
  EXPECT_THAT(chosen->device, IsNull());
  EXPECT_THAT(chosen->why, HasSubstr("as asked for"));
}

TEST(ChooseDeviceTest, OpensTheGpuAndSaysWhich) {
  for (const char* name : {"auto", "cuda", "cuda:0"}) {
    const auto chosen = ChooseDevice(name, LYNX_EMULATED_PLUGIN);
    ASSERT_THAT(chosen, IsOk());
    EXPECT_THAT(chosen->device, NotNull());
    EXPECT_EQ(chosen->why, "GPU 0, emulated, sm_80, 1.07 of 1.07 GB free");
  }
}

// auto says of each reason why it is the CPUs; cuda fails with it.
TEST(ChooseDeviceTest, WithoutAGpuAutoTakesTheCpusAndSaysWhy) {
  const struct {
    const char* plugin;
    const char* why;
    absl::StatusCode code;
  } cases[] = {
      {kNoPlugin, "/no/such/liblynx_cuda.so", absl::StatusCode::kNotFound},
      {kOtherLibrary, "is no CUDA plug-in of Lynx", absl::StatusCode::kFailedPrecondition},
  };
  for (const auto& [plugin, why, code] : cases) {
    const auto chosen = ChooseDevice("auto", plugin);
    ASSERT_THAT(chosen, IsOk());
    EXPECT_THAT(chosen->device, IsNull());
    EXPECT_THAT(chosen->why, StartsWith("the CPUs: "));
    EXPECT_THAT(chosen->why, HasSubstr(why));
    EXPECT_THAT(ChooseDevice("cuda", plugin).status(), StatusIs(code, HasSubstr(why)));
  }
  EXPECT_THAT(ChooseDevice("cuda:1", LYNX_EMULATED_PLUGIN).status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("no GPU 1")));
}

TEST(ChooseDeviceTest, APluginOfOtherSourcesIsRefused) {
  const PluginEntry same = {.version = kPluginVersion,
                            .compiler = __VERSION__,
                            .plugin = nullptr,
                            .layout = kPluginLayout};
  EXPECT_THAT(CheckPluginEntry(same, "x.so"), IsOk());
  const auto refused = [](const char* why) {
    return StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(why));
  };
  PluginEntry other = same;
  other.version = kPluginVersion - 1;
  EXPECT_THAT(CheckPluginEntry(other, "x.so"), refused("x.so: is of version 5"));
  other = same;
  other.compiler = "another";
  EXPECT_THAT(CheckPluginEntry(other, "x.so"), refused("built by another"));
  other = same;
  other.layout += 1;
  EXPECT_THAT(CheckPluginEntry(other, "x.so"), refused("x.so: was built of other sources"));
}

}  // namespace
}  // namespace lynx::cuda
