// SPDX-License-Identifier: Apache-2.0
// A valid schedule at random, for property tests (rapidcheck): nothing that a generator would
// write.
#pragma once

#include "common/schedule/schedule.h"

namespace takt::schedule {

// Any placement, small sizes, split and joint backwards side by side; `pairs`: overlapped ones too.
Schedule AnyOrder(bool pairs = true);

}  // namespace takt::schedule
