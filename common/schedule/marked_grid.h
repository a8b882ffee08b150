// SPDX-License-Identifier: Apache-2.0
// Where a cell is, and the part of a schedule around it with the cell in brackets: what a rejected
// schedule shows.
#pragma once

#include <string>

#include "common/schedule/schedule.h"

namespace takt::schedule {

// position: in the rank's row; may be one past its end (something is missing there).

// "rank 0, cell 3".
std::string Place(const Schedule& schedule, int rank, int position);

std::string MarkedGrid(const Schedule& schedule, int rank, int position);

}  // namespace takt::schedule
