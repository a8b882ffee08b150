// SPDX-License-Identifier: Apache-2.0
// A schedule is data: the compute actions of every pp rank, in order. Generators make one, the text
// form carries one, the validator judges one, the lowering (common/program) turns a valid one into
// programs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/id.h"
#include "common/schedule/action.h"

namespace takt::schedule {

// No schedule has more actions: sizes beyond are refused before memory is spent on them.
inline constexpr std::int64_t kMaxActions = std::int64_t{1} << 24;

enum class Placement : std::uint8_t {
  kLoop = 1,  // stage s on rank s mod P
  kV = 2,     // V = 2: stage s on rank s, or 2P-1-s if s >= P
  // S = P, even, two copies of the weights: each microbatch flows down (stage s on rank s) or up
  // (stage s on rank P-1-s).
  kBidirectional = 3,
};

// When weights change, and which of them a microbatch meets.
enum class Updates : std::uint8_t {
  kFlush = 1,         // once a step, after all its backwards; all passes of a step use the same
  kEachBackward = 2,  // after every B, with its gradient alone; B uses the weights that its F used
  kDelayed = 3,       // once a step; all passes of a step use the weights before the last update
};

// What one pp rank does, in order. An F that joins the B after it makes one cell with it.
using Row = std::vector<Action>;

struct Schedule {
  std::string name;  // the family, or the file it came from
  int num_stages = 0;
  int num_microbatches = 0;
  Placement placement = Placement::kLoop;
  // Without a flush, the forwards that begin a row run among the backwards that end the step
  // before.
  Updates updates = Updates::kFlush;
  // Rows by pp rank. An action runs on the rank whose row it is in.
  std::vector<Row> ranks;

  int num_ranks() const { return static_cast<int>(ranks.size()); }
};

// Whether the actions at `position` and after it are an overlapped pair: an F that joins, and a B.
bool BeginsPair(const Row& row, int position);

// The whole cell that begins at `position`: "0F3", or "(0F3;3B5)" for a pair.
std::string CellText(const Row& row, int position);

// Number of the cell, from 1, that the action at `position` is in; one past the last at the row's
// end.
int CellNumber(const Row& row, int position);

// The rank that holds `stage`. Bidirectional: its down copy, which is the primary one.
PpRank RankOfStage(Placement placement, int num_ranks, StageId stage);

// All ranks that hold `stage`: that one, and under bidirectional that of the up copy.
std::vector<PpRank> RanksOfStage(Placement placement, int num_ranks, StageId stage);

// "loop", "v", "bidirectional".
std::string_view PlacementName(Placement placement);

// The placement (loop, else v, else bidirectional) that every row agrees with; for schedules from
// files. kInvalidArgument (FieldError "placement"): the first action that contradicts each.
absl::StatusOr<Placement> InferPlacement(const Schedule& schedule);

}  // namespace takt::schedule
