// SPDX-License-Identifier: Apache-2.0
// Schedules for property tests: rapidcheck draws families and sizes, or any valid order.
#pragma once

#include "common/schedule/schedule.h"

namespace takt::sim {

// Uniform in [low, high): rapidcheck's own ranges stay near the lower end for most of a run.
int Uniform(int low, int high);

// A built-in family, P to 8, M to 16, V to 4.
schedule::Schedule AnyFamily();

// A valid order at random, in a loop or a v, with split and joint backwards side by side.
schedule::Schedule AnyOrder();

// Either.
schedule::Schedule AnySchedule();

}  // namespace takt::sim
