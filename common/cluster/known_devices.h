// SPDX-License-Identifier: Apache-2.0
// GPUs whose rates, memory and compute capability need not be written into a cluster file.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "common/base/matmul_rates.h"

namespace takt::cluster {

// The share of the published peak that products of a model's layers reach, large and small ones
// together. Large square products in bf16 reach 0.8 on an H100.
inline constexpr double kAchievableShare = 0.7;

struct KnownDevice {
  std::string_view name;
  std::string_view compute_capability;  // "9.0"
  std::int64_t memory_bytes = 0;        // as published; drivers tell a little more
  MatmulRates peak;                     // published, of dense products
};

std::span<const KnownDevice> KnownDevices();

// Returns nullptr if there is none of this name.
const KnownDevice* FindKnownDevice(std::string_view name);

// Returns kAchievableShare of the peak.
MatmulRates AchievableRates(const KnownDevice& device);

}  // namespace takt::cluster
