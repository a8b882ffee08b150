// SPDX-License-Identifier: Apache-2.0
// The part of a schedule around one cell, with that cell in brackets: what a rejected schedule
// shows.
#pragma once

#include <string>

#include "common/schedule/schedule.h"

namespace takt::schedule {

// position: in the rank's row; may be one past its end (something is missing there).
std::string MarkedGrid(const Schedule& schedule, int rank, int position);

}  // namespace takt::schedule
