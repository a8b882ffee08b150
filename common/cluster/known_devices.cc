// SPDX-License-Identifier: Apache-2.0
#include "common/cluster/known_devices.h"

#include <algorithm>
#include <iterator>

namespace takt::cluster {
namespace {

// The numbers are from NVIDIA's data sheets of the SXM versions. Products in f32 keep all bits of
// their operands, so their peak is that of f32 outside of tensor cores (TF32 is off,
// docs/numerics.md). The V100 has no bf16; its peak in f16 stands there.
constexpr KnownDevice kDevices[] = {
    {"V100", "7.0", 32'000'000'000, {.f32 = 15.7e12, .bf16 = 125e12}},
    {"A100", "8.0", 80'000'000'000, {.f32 = 19.5e12, .bf16 = 312e12}},
    {"H100", "9.0", 80'000'000'000, {.f32 = 67e12, .bf16 = 989e12}},
    {"H200", "9.0", 141'000'000'000, {.f32 = 67e12, .bf16 = 989e12}},
    {"B200", "10.0", 180'000'000'000, {.f32 = 75e12, .bf16 = 2250e12}},
};

}  // namespace

std::span<const KnownDevice> KnownDevices() { return kDevices; }

const KnownDevice* FindKnownDevice(std::string_view name) {
  const auto* found = std::ranges::find(kDevices, name, &KnownDevice::name);
  return found == std::end(kDevices) ? nullptr : found;
}

MatmulRates AchievableRates(const KnownDevice& device) {
  return {.f32 = kAchievableShare * device.peak.f32, .bf16 = kAchievableShare * device.peak.bf16};
}

}  // namespace takt::cluster
