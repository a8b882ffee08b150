// SPDX-License-Identifier: Apache-2.0
// The time that each instruction of a measured step took, in the form that the simulator replays,
// and the same step with a part of it changed.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "common/program/program.h"
#include "common/sim/replay.h"
#include "common/trace/passes_alone.h"
#include "common/trace/timeline.h"

namespace takt::explain {

// An instruction's time belongs to one of these parts of a step.
enum class Work : std::uint8_t { kCompute, kMessage, kSum, kData };
// SPECULATE of rows, beside what is computed, counts with the messages that wait for it.
Work WorkOf(const program::Instruction& instruction);

// One step of all ranks, ready to be replayed. Borrows the timeline.
class MeasuredStep {
 public:
  // kNotFound: the timeline has no such step.
  static absl::StatusOr<MeasuredStep> Create(const trace::Timeline& timeline, StepId step);

  // The programs are in the order of the mesh's ranks. A pair whose halves ran one after the other
  // is an F and a B there (sim::AsExecuted).
  const std::vector<program::Program>& programs() const { return programs_; }
  const trace::StepWindow& window() const { return window_; }
  double seconds() const {
    return static_cast<double>(window_.end_nanos - window_.start_nanos) * 1e-9;
  }

  // Compute takes what this rank usually takes for it (the median over all steps of the timeline),
  // without the meetings inside. A half takes its share of the pair's time. Messages, sums and data
  // take what was measured, less the time in which the process of one of their ranks stood still.
  const sim::Durations& usual() const { return usual_; }

  // Returns how long a step takes if instructions take so long, and the meetings inside them what
  // was measured.
  double StepTime(const sim::Durations& durations) const;
  // Returns the same if those meetings take no time.
  double StepTimeWithoutMeetings(const sim::Durations& durations) const;

  // Calls visit(rank, index, instruction) for each instruction of each rank.
  template <class Visit>
  void ForEach(Visit visit) const {
    for (std::size_t rank = 0; rank < programs_.size(); ++rank) {
      const std::vector<program::Instruction>& body = programs_[rank].body;
      for (std::size_t i = 0; i < body.size(); ++i) visit(rank, i, body[i]);
    }
  }

  // Calls visit(rank, index, op, stage, share) for each compute instruction, and for both halves of
  // a pair, of which each has its share of the time.
  template <class Visit>
  void ForEachPass(Visit visit) const {
    ForEach([&](std::size_t rank, std::size_t i, const program::Instruction& instruction) {
      if (!program::IsCompute(instruction.op)) return;
      if (instruction.op != program::Op::kOverlap)
        return visit(rank, i, instruction.op, instruction.stage, 1.0);
      const double forward = ForwardShare(rank, instruction);
      visit(rank, i, program::Op::kForward, instruction.stage, forward);
      visit(rank, i, program::Op::kBackward, instruction.backward_stage, 1 - forward);
    });
  }

 private:
  MeasuredStep() = default;
  // Returns which share of a pair is its F's, by what the rank's passes take outside of pairs.
  double ForwardShare(std::size_t rank, const program::Instruction& pair) const;
  sim::ReplayOptions Options(const sim::Durations* meetings) const;

  std::vector<program::Program> programs_;
  std::vector<trace::PassesAlone> alone_;  // by rank
  mesh::Mesh mesh_;
  trace::StepWindow window_;
  sim::Durations usual_;
  sim::Durations meetings_;  // from when all were there, as sim::ReplayOptions
};

// Returns `durations`, where all instructions of one sort take no time.
sim::Durations WithFree(const MeasuredStep& step, sim::Durations durations, Work work);

// Returns `durations`, where every compute instruction takes the mean of its kind over all ranks.
// The total work stays the same.
sim::Durations Balanced(const MeasuredStep& step, sim::Durations durations);

// Returns how long each rank computes.
std::vector<double> BusySeconds(const MeasuredStep& step, const sim::Durations& durations);

}  // namespace takt::explain
