// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace takt::metrics {

// docs/metrics.md, whole: the catalogue for people.
std::string Document();

}  // namespace takt::metrics
