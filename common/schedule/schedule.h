// SPDX-License-Identifier: Apache-2.0
// A schedule is data: the compute actions of every pp rank, in order. Generators make schedules,
// the text form carries them, the validator checks them, and the lowering (common/program) turns
// valid ones into programs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/id.h"
#include "common/schedule/action.h"

namespace takt::schedule {

// No schedule has more actions. Larger sizes are refused before memory is spent on them.
inline constexpr std::int64_t kMaxActions = std::int64_t{1} << 24;

enum class Placement : std::uint8_t {
  kLoop = 1,  // stage s on rank s mod P
  kV = 2,     // V = 2: stage s on rank s, or 2P-1-s if s >= P
  // S = P, even, with two copies of the weights. Each microbatch flows down (stage s on rank s) or
  // up (stage s on rank P-1-s).
  kBidirectional = 3,
};

// This decides when weights change, and which weights a microbatch meets.
enum class Updates : std::uint8_t {
  // Once a step, after all its backwards. All passes of a step use the same weights.
  kFlush = 1,
  // After every W or B, with its gradient alone. A backward uses the weights that its F used.
  kEachBackward = 2,
  // Once a step. All passes of a step use the weights before the last update.
  kDelayed = 3,
};

// The actions of one pp rank, in order. An F that joins the B after it makes one cell with it.
using Row = std::vector<Action>;

struct Schedule {
  std::string name;  // the family, or the file it came from
  int num_stages = 0;
  int num_microbatches = 0;
  Placement placement = Placement::kLoop;
  // Without a flush, the forwards that begin a row (all but the last before its first backward) run
  // among the backwards that end the step before. program::Lower says which rows can do so.
  Updates updates = Updates::kFlush;
  // Every rank has blocks of the vocabulary, and an S and a T for each microbatch. Only schedules
  // with a flush and one copy of the weights can do so.
  bool spreads_vocabulary = false;
  // Rows by pp rank. An action runs on the rank whose row it is in.
  std::vector<Row> ranks;

  int num_ranks() const { return static_cast<int>(ranks.size()); }
};

// Returns whether the action at `position` and the next one are an overlapped pair: an F that
// joins, and a B.
bool BeginsPair(const Row& row, int position);

// Returns the whole cell that begins at `position`: "0F3", or "(0F3;3B5)" for a pair.
std::string CellText(const Row& row, int position);

// Returns the number, from 1, of the cell that the action at `position` is in. At the row's end it
// is one past the last cell.
int CellNumber(const Row& row, int position);

// Returns the rank that holds `stage`. Under bidirectional it is that of the primary, down copy.
PpRank RankOfStage(Placement placement, int num_ranks, StageId stage);

// Returns all ranks that hold `stage`: under bidirectional also the rank of the up copy.
std::vector<PpRank> RanksOfStage(Placement placement, int num_ranks, StageId stage);

// "loop", "v", "bidirectional".
std::string_view PlacementName(Placement placement);

// Returns the placement that every row agrees with: loop, else v, else bidirectional. Schedules
// from files need it. kInvalidArgument (FieldError "placement"): none fits; the error names the
// first action that contradicts each.
absl::StatusOr<Placement> InferPlacement(const Schedule& schedule);

}  // namespace takt::schedule
