// SPDX-License-Identifier: Apache-2.0
// A store that forgets with the process: for tests.
#pragma once

#include <memory>

#include "coordinator/store/store.h"

namespace takt::store {

std::unique_ptr<Store> NewMemoryStore(StoreLimits limits = {});

}  // namespace takt::store
