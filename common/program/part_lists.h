// SPDX-License-Identifier: Apache-2.0
// The parts of instructions, where several ranks share a layer.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/program/lowering.h"
#include "common/program/program.h"

namespace takt::program {

// Returns the lists of all F, I, W, B, O and NORM_PARTIAL of a program whose stages have these
// shapes. F goes through the layers in ascending order, I and W in descending order. B runs I and W
// of one layer after the other. The list of an O has the parts of its F and then those of its B.
// The F and the B have lists of their own, too, for SplitPairs and for programs that only go
// forward.
std::vector<PartList> MakePartLists(const Program& program, const std::vector<StageShape>& stages);

// Returns the parts of an instruction. Empty: it only computes, or does something else.
std::span<const Part> PartListOf(const Instruction& instruction, const Program& program);

// Returns where the meetings of each instruction of the body begin, if the meetings of all stand in
// one list, in order, and at the end how many there are.
std::vector<std::size_t> MeetingOffsets(const Program& program);

// Returns how many meetings there are inside the instructions of the body.
std::size_t NumMeetings(const Program& program);

// "gather(4)": what a part is, and its number in its list.
std::string PartName(std::span<const Part> parts, std::size_t number);

// Checks that the lists are of instructions that compute, each with a meeting and something to
// compute, in ascending order of op and stages.
absl::Status CheckPartLists(const Program& program);

}  // namespace takt::program
