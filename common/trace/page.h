// SPDX-License-Identifier: Apache-2.0
// A timeline as a page in one file, which loads nothing else. It zooms, and explains what the
// pointer is on.
#pragma once

#include <string>

#include "common/trace/timeline.h"

namespace takt::trace {

std::string WritePage(const Timeline& timeline);

}  // namespace takt::trace
