// SPDX-License-Identifier: Apache-2.0
#include "worker/plugin/choose_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/status/status.h"

namespace takt::plugin {
namespace {

using ::testing::HasSubstr;
using Kind = DeviceWish::Kind;

constexpr char kNoSysfs[] = "/nonexistent";

absl::StatusOr<std::vector<Device>> TwoGpus() {
  return std::vector<Device>{
      {.index = 0, .name = "A100", .uuid = "GPU-0", .compute_capability = "8.0"},
      {.index = 1,
       .name = "H200",
       .uuid = "GPU-1",
       .compute_capability = "9.0",
       .pci_bus_id = "0000:E1:00.0"}};
}
absl::StatusOr<std::vector<Device>> AnOldGpu() {
  return std::vector<Device>{{.name = "Tesla T4", .compute_capability = "7.5"}};
}
absl::StatusOr<std::vector<Device>> NoDriver() {
  return absl::UnavailableError("no NVIDIA driver");
}

constexpr CudaEntry kTwoGpus = {.version = "", .list_devices = TwoGpus};
constexpr CudaEntry kAnOldGpu = {.version = "", .list_devices = AnOldGpu};
constexpr CudaEntry kNoDriver = {.version = "", .list_devices = NoDriver};

LoadCudaEntry Finds(const CudaEntry& entry) {
  return [&entry]() -> absl::StatusOr<const CudaEntry*> { return &entry; };
}

TEST(ParseDeviceWish, ReadsWhatIsAskedFor) {
  EXPECT_EQ(ParseDeviceWish("auto")->kind, Kind::kAuto);
  EXPECT_EQ(ParseDeviceWish("cpu")->kind, Kind::kCpu);
  EXPECT_EQ(ParseDeviceWish("cuda")->index, 0);
  EXPECT_EQ(ParseDeviceWish("cuda:3")->kind, Kind::kCuda);
  EXPECT_EQ(ParseDeviceWish("cuda:3")->index, 3);
  EXPECT_EQ(ParseDeviceWish("auto:2")->index, 2);
  for (const char* wrong : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda1", "cpu:0"}) {
    EXPECT_THAT(std::string(ParseDeviceWish(wrong).status().message()),
                HasSubstr("must be auto, cpu, cuda or cuda:N"))
        << wrong;
  }
}

TEST(ChooseDevice, TakesTheOneThatIsNamed) {
  const auto chosen = ChooseDevice({.kind = Kind::kCuda, .index = 1}, Finds(kTwoGpus), kNoSysfs);
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_EQ(chosen->device->uuid, "GPU-1");
  EXPECT_FALSE(chosen->device->shared);
  EXPECT_FALSE(chosen->device->numa_node.has_value());
}

TEST(ChooseDevice, RefusesANumberThatThereIsNot) {
  for (const Kind kind : {Kind::kCuda, Kind::kAuto}) {
    EXPECT_EQ(
        ChooseDevice({.kind = kind, .index = 2}, Finds(kTwoGpus), kNoSysfs).status().message(),
        "--device is cuda:2: this process sees 2 GPUs, counted from 0; use a lower number, "
        "or check CUDA_VISIBLE_DEVICES");
  }
}

TEST(ChooseDevice, OfSharedOnesTheNumberCountsRound) {
  const auto chosen =
      ChooseDevice({.kind = Kind::kAuto, .index = 3, .shared = true}, Finds(kTwoGpus), kNoSysfs);
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_EQ(chosen->device->uuid, "GPU-1");
  EXPECT_TRUE(chosen->device->shared);
}

TEST(ChooseDevice, AutoTakesTheCoresWhereNoGpuCanBeHadAndSaysWhy) {
  const LoadCudaEntry no_module = [] { return absl::NotFoundError("no module"); };
  EXPECT_EQ(ChooseDevice({}, no_module, kNoSysfs)->why_not, "no module");
  EXPECT_EQ(ChooseDevice({}, Finds(kNoDriver), kNoSysfs)->why_not, "no NVIDIA driver");
  EXPECT_EQ(ChooseDevice({}, Finds(kAnOldGpu), kNoSysfs)->why_not,
            "Tesla T4 has compute capability 7.5, and this worker has code for 8 and newer");
  EXPECT_FALSE(ChooseDevice({}, Finds(kNoDriver), kNoSysfs)->device.has_value());
}

TEST(ChooseDevice, CudaIsRefusedWhereNoGpuCanBeHad) {
  EXPECT_EQ(ChooseDevice({.kind = Kind::kCuda}, Finds(kNoDriver), kNoSysfs).status().message(),
            "no NVIDIA driver");
}

TEST(ChooseDevice, CpuAsksNobody) {
  const LoadCudaEntry never = []() -> absl::StatusOr<const CudaEntry*> {
    ADD_FAILURE() << "was asked";
    return absl::NotFoundError("");
  };
  EXPECT_FALSE(ChooseDevice({.kind = Kind::kCpu}, never, kNoSysfs)->device.has_value());
}

TEST(NumaNodeOf, IsReadFromSysfsUnderTheNameInSmallLetters) {
  const std::filesystem::path sysfs =
      std::filesystem::path(testing::TempDir()) / ("sysfs-" + std::to_string(getpid()));
  const auto folder = sysfs / "bus/pci/devices/0000:e1:00.0";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "numa_node") << "1\n";
  EXPECT_EQ(NumaNodeOf(sysfs, "0000:E1:00.0"), 1);
  EXPECT_EQ(ChooseDevice({.index = 1}, Finds(kTwoGpus), sysfs)->device->numa_node, 1);
  std::ofstream(folder / "numa_node") << "-1\n";
  EXPECT_EQ(NumaNodeOf(sysfs, "0000:E1:00.0"), std::nullopt);
  std::filesystem::remove_all(sysfs);
}

}  // namespace
}  // namespace takt::plugin
