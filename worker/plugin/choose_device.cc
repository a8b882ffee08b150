// SPDX-License-Identifier: Apache-2.0
#include "worker/plugin/choose_device.h"

#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/counted.h"
#include "common/base/status.h"

namespace takt::plugin {
namespace {

constexpr double kOldestCapability = 8.0;  // takt_cuda has code for it (cmake/Cuda.cmake)

absl::StatusOr<Device> FindDevice(const DeviceWish& wish, const LoadCudaEntry& load) {
  ASSIGN_OR_RETURN(const CudaEntry* const cuda, load());
  ASSIGN_OR_RETURN(const std::vector<Device> devices, cuda->list_devices());
  const int num_devices = static_cast<int>(devices.size());
  if (num_devices == 0) return absl::UnavailableError("the driver shows no GPU");
  if (wish.index >= num_devices && !wish.shared) {
    return InvalidField({.field = "--device",
                         .value = absl::StrCat("cuda:", wish.index),
                         .rule = absl::StrCat("this process sees ", Counted(num_devices, "GPU"),
                                              ", counted from 0"),
                         .fix = "use a lower number, or check CUDA_VISIBLE_DEVICES"});
  }
  Device device = devices[wish.index % num_devices];
  double capability = 0;
  if (!absl::SimpleAtod(device.compute_capability, &capability) || capability < kOldestCapability) {
    return absl::FailedPreconditionError(
        absl::StrCat(device.name, " has compute capability ", device.compute_capability,
                     ", and this worker has code for ", kOldestCapability, " and newer"));
  }
  return device;
}

}  // namespace

absl::StatusOr<DeviceWish> ParseDeviceWish(std::string_view text) {
  const absl::Status wrong = InvalidField({.field = "--device",
                                           .value = std::string(text),
                                           .rule = "must be auto, cpu, cuda or cuda:N",
                                           .fix = "use one of them"});
  if (text == "cpu") return DeviceWish{.kind = DeviceWish::Kind::kCpu};
  DeviceWish wish;
  absl::string_view rest(text.data(), text.size());
  if (absl::ConsumePrefix(&rest, "cuda")) {
    wish.kind = DeviceWish::Kind::kCuda;
  } else if (!absl::ConsumePrefix(&rest, "auto")) {
    return wrong;
  }
  if (rest.empty()) return wish;
  if (!absl::ConsumePrefix(&rest, ":") || !absl::SimpleAtoi(rest, &wish.index) || wish.index < 0)
    return wrong;
  return wish;
}

absl::StatusOr<ChosenDevice> ChooseDevice(const DeviceWish& wish, const LoadCudaEntry& load,
                                          const std::string& sysfs) {
  if (wish.kind == DeviceWish::Kind::kCpu) return ChosenDevice{};
  absl::StatusOr<Device> device = FindDevice(wish, load);
  if (!device.ok()) {
    // An index that is too high is a mistake, whatever was asked for.
    if (wish.kind == DeviceWish::Kind::kCuda || absl::IsInvalidArgument(device.status()))
      return device.status();
    return ChosenDevice{.why_not = std::string(device.status().message())};
  }
  device->shared = wish.shared;
  device->numa_node = NumaNodeOf(sysfs, device->pci_bus_id);
  return ChosenDevice{.device = *std::move(device)};
}

std::optional<int> NumaNodeOf(const std::string& sysfs, std::string pci_bus_id) {
  absl::AsciiStrToLower(&pci_bus_id);  // sysfs writes it so
  std::ifstream file(absl::StrCat(sysfs, "/bus/pci/devices/", pci_bus_id, "/numa_node"));
  int node = -1;
  if (!(file >> node) || node < 0) return std::nullopt;
  return node;
}

}  // namespace takt::plugin
