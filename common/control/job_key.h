// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <string>

#include "common/base/id.h"

namespace takt::control {

// One generation of one job.
struct JobKey {
  std::string job;  // its name
  Generation generation;
  auto operator<=>(const JobKey&) const = default;
};

}  // namespace takt::control
