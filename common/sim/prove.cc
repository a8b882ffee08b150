// SPDX-License-Identifier: Apache-2.0
#include "common/sim/prove.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/counted.h"
#include "common/base/status.h"
#include "common/program/slot_bytes.h"
#include "common/schedule/marked_grid.h"
#include "common/sim/dataflow.h"
#include "common/sim/machine.h"
#include "common/sim/timeline.h"
#include "common/sim/together.h"

namespace takt::sim {
namespace {

using program::Direction;
using program::Instruction;
using program::Op;
using program::Program;
using schedule::ActionKind;
using schedule::Schedule;

std::optional<Refusal> CheckBytes(const std::vector<Program>& programs,
                                  const std::vector<std::int64_t>& limits) {
  for (std::size_t rank = 0; rank < limits.size(); ++rank) {
    const program::SlotBytes bytes = program::CountSlotBytes(programs[rank]);
    if (bytes.total <= limits[rank]) continue;
    return Refusal{absl::StrCat("rank ", rank, " needs ", bytes.total, " bytes (", bytes.stash,
                                " of activations kept, ", bytes.buffers,
                                " of messages), the limit is ", limits[rank]),
                   static_cast<int>(rank)};
  }
  return std::nullopt;
}

// The action that an instruction runs, whose result it sends, or for which it receives.
schedule::Action ActionOf(const Instruction& instruction, const Program& program) {
  if (instruction.op != Op::kSend && instruction.op != Op::kRecv) {
    return {instruction.stage, KindOf(instruction.op), instruction.microbatch};
  }
  const bool forward = program.lanes[instruction.lane.value()].direction == Direction::kActivation;
  const StageId taker(instruction.stage.value() + (forward ? 1 : -1));
  return {instruction.op == Op::kSend ? instruction.stage : taker,
          forward ? ActionKind::kForward : ActionKind::kBackward, instruction.microbatch};
}

// The cell of the guilty instruction; one past the end of the row: it has none.
int CellOf(const Schedule& schedule, const Program& program, std::int32_t instruction) {
  const std::vector<schedule::Action>& row = schedule.ranks[program.pp_rank.value()];
  if (instruction >= 0) {
    const schedule::Action sought = ActionOf(program.body[instruction], program);
    for (std::size_t i = 0; i < row.size(); ++i) {
      const bool same_kind = row[i].kind == sought.kind || (sought.kind == ActionKind::kBackward &&
                                                            row[i].kind == ActionKind::kInputGrad);
      if (same_kind && row[i].stage == sought.stage && row[i].microbatch == sought.microbatch) {
        return static_cast<int>(i);
      }
    }
  }
  return static_cast<int>(row.size());
}

absl::Status ToStatus(const Refusal& refusal, const std::vector<Program>& programs,
                      const Schedule* schedule) {
  std::string text = refusal.reason;
  if (schedule != nullptr && refusal.pp_rank >= 0 && refusal.pp_rank < schedule->num_ranks()) {
    const int cell = CellOf(*schedule, programs[refusal.pp_rank], refusal.instruction);
    absl::StrAppend(&text, "\n", schedule::MarkedGrid(*schedule, refusal.pp_rank, cell));
  }
  return absl::InvalidArgumentError(text);
}

std::optional<Refusal> FindRefusal(const std::vector<Program>& programs,
                                   const ProofOptions& options) {
  for (const Program& program : programs) {
    if (auto refusal = CheckDataflow(program)) return refusal;
  }
  if (auto refusal = CheckContributions(programs, options.sums)) return refusal;
  if (auto refusal = CheckBytes(programs, options.byte_limits)) return refusal;
  const cost::Costs any;
  return Machine(programs, any, {.one_fifo_per_pair = options.one_fifo_per_pair}).Run();
}

}  // namespace

absl::Status Prove(const std::vector<Program>& programs, const ProofOptions& options) {
  RETURN_IF_ERROR(CheckTogether(programs));
  if (!options.byte_limits.empty() && options.byte_limits.size() != programs.size()) {
    return InvalidField(
        {.field = "byte_limits",
         .value = Counted(std::ssize(options.byte_limits), "value"),
         .rule = absl::StrCat("one for each of the ", Counted(std::ssize(programs), "rank")),
         .fix = "give one for each rank, or none"});
  }
  const std::optional<Refusal> refusal = FindRefusal(programs, options);
  return refusal.has_value() ? ToStatus(*refusal, programs, options.schedule) : absl::OkStatus();
}

}  // namespace takt::sim
