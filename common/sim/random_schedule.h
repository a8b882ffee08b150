// SPDX-License-Identifier: Apache-2.0
// Schedules for property tests: rapidcheck draws families and sizes, or any valid order.
#pragma once

#include "common/schedule/testing/any_family.h"

namespace takt::sim {

using schedule::AnyFamily;
using schedule::Uniform;

// A valid order at random, in a loop or a v, with split and joint backwards side by side.
schedule::Schedule AnyOrder();

// Either.
schedule::Schedule AnySchedule();

}  // namespace takt::sim
