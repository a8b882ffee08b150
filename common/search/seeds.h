// SPDX-License-Identifier: Apache-2.0
// Orders to start from. They have F and I alone and leave W to Evaluator::Fill, unless said
// otherwise.
#pragma once

#include <functional>
#include <string_view>

#include "common/search/problem.h"

namespace takt::search {

// The same without W.
Rows WithoutWeightGrads(Rows rows);

// Calls `visit(rows, origin)` for each order. `visit` returns false to stop.
using Visit = std::function<bool(const Rows& rows, std::string_view origin)>;

// One microbatch after the other, which needs the least memory of all.
void SerialSeed(const Problem& problem, const Visit& visit);

// The template of all loop families: groups of microbatches, and a warmup that becomes shorter from
// rank to rank.
void LoopSeeds(const Problem& problem, const Visit& visit);

// From both ends at once, forwards of one direction between backwards of the other.   Source:
// DualPipe (2412.19437). With too few microbatches it is the order for enough of them, without the
// missing ones.
void TwoWaySeed(const Problem& problem, const Visit& visit);

// The slots of one microbatch in a v, to be repeated every 6 (2F + 2I + 2W of a rank): those of
// rank 0, and how Fd and Id shift from rank to rank, first by `early` and after `turn` ranks by
// `late`. Fu and Iu shift by -1.   Source: Qi 2024 (2405.15362).
struct VBlock {
  int down = 0, up = 0, up_gradient = 0, down_gradient = 0;
  int early = 1, late = 1, turn = 1;
};
// Finds all building blocks in which no rank has two actions in one slot.
std::vector<VBlock> VBlocks(int num_ranks);
Rows Repeat(const Problem& problem, const VBlock& block);

// Returns whether a rank that repeats the block holds about as much as it may. Never with so few
// microbatches that fill and drain meet.
bool FillsMemory(const Problem& problem, const VBlock& block);
// Returns repeated blocks with another fill and drain: gradients come back as soon, and ranks end
// as soon, as memory and messages allow.   Source: Qi 2024 (2405.15362).
Rows WithFastEnds(const Problem& problem, Rows rows);

// Each built-in family that has this placement and size, with its W.
void FamilySeeds(const Problem& problem, const Request& request, const Visit& visit);

}  // namespace takt::search
