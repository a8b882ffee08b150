// SPDX-License-Identifier: Apache-2.0
// Shows where a cell of a rejected schedule is, and the part of the schedule around it with the
// cell in brackets.
#pragma once

#include <string>

#include "common/schedule/schedule.h"

namespace takt::schedule {

// position: in the rank's row. One past its end: something is missing there.

// "rank 0, cell 3".
std::string Place(const Schedule& schedule, int rank, int position);

std::string MarkedGrid(const Schedule& schedule, int rank, int position);

}  // namespace takt::schedule
