// SPDX-License-Identifier: Apache-2.0
// A valid schedule at random, for property tests (rapidcheck). No generator would write one like
// it.
#pragma once

#include "common/schedule/schedule.h"

namespace takt::schedule {

// Any placement, small sizes, split and joint backwards side by side. `pairs`: overlapped pairs
// too.
Schedule AnyOrder(bool pairs = true);

}  // namespace takt::schedule
