// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace takt::metrics {

// Returns the whole of docs/metrics.md, which is the catalogue for people.
std::string Document();

}  // namespace takt::metrics
