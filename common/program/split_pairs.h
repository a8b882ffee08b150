// SPDX-License-Identifier: Apache-2.0
// Splits overlapped pairs into their F and their B.
#pragma once

#include <cstdint>
#include <vector>

#include "common/program/program.h"

namespace takt::program {

struct PairHalves {
  Instruction forward, backward;
};

// Returns the F and the B of a pair. Neither uses slots that the other one changes. overlap: a
// kOverlap of a checked program.
PairHalves HalvesOf(const Instruction& overlap, const Program& program);

struct SplitProgram {
  Program program;
  // For each instruction of the new body, the index of the one that it was made of. Two neighbours
  // with the same origin are the halves of a pair.
  std::vector<std::int32_t> origins;
};

enum class Pairs : std::uint8_t { kAll, kWithoutMeetings };

// Puts an F and a B in the place of each O of the body, or only of those in which no ranks meet.
// The lane has them in this order, so whatever waits for the B waits for the F, too. The meetings
// inside instructions keep their order.
SplitProgram SplitPairs(const Program& program, Pairs pairs = Pairs::kAll);

// Returns whether the body has an O.
bool HasPairs(const Program& program);

// Returns whether ranks meet inside an O of the body. Only then its halves gain by running side by
// side: one computes while the other one meets.
bool PairsMeet(const Program& program);

// Returns whether both halves of each O of the body read the same version of the weights.
bool PairsReadOneVersion(const Program& program);

}  // namespace takt::program
