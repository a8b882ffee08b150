// SPDX-License-Identifier: Apache-2.0
// A timeline as a page: one file that asks for nothing, zooms, and says what is pointed at.
#pragma once

#include <string>

#include "common/trace/timeline.h"

namespace takt::trace {

std::string WritePage(const Timeline& timeline);

}  // namespace takt::trace
