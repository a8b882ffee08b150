// SPDX-License-Identifier: Apache-2.0
// Decides where B computes the logits, slice by slice (common/model/head_slices.h). Layouts,
// trainers and profiles all ask here.
#pragma once

#include "common/base/id.h"
#include "common/model/model.h"
#include "common/program/program.h"

namespace takt::program {

// Returns whether on the compute lane each F of the stage has its B right behind it, and the rank
// has the stage at all. Then nothing else is computed between the two, with these weights or
// others.
bool BackwardFollowsForward(const Program& program, StageId stage);

// Returns whether the rank has the head and slices it: the rows are several slices, each B follows
// its F at once, and no ranks meet in the head.
bool SlicesHead(const model::Model& model, const Program& program);

}  // namespace takt::program
