// SPDX-License-Identifier: Apache-2.0
// What each instruction of a measured step took, in the form in which the simulator replays it, and
// the same step with a part of it changed.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "common/program/program.h"
#include "common/sim/replay.h"
#include "common/trace/timeline.h"

namespace takt::explain {

// Where the time of an instruction is booked when it is made free.
enum class Work : std::uint8_t { kCompute, kMessage, kSum, kData };
Work WorkOf(program::Op op);

// Of at least one; of an even number, the upper one.
double Median(std::vector<double> values);

// One step of all ranks, ready to be replayed. Borrows the timeline.
class MeasuredStep {
 public:
  // kNotFound: the timeline has no such step.
  static absl::StatusOr<MeasuredStep> Create(const trace::Timeline& timeline, StepId step);

  // By rank of the mesh.
  const std::vector<program::Program>& programs() const { return programs_; }
  const trace::StepWindow& window() const { return window_; }
  double seconds() const {
    return static_cast<double>(window_.end_nanos - window_.start_nanos) * 1e-9;
  }

  // Compute as this rank usually takes for it (the median over all steps of the timeline);
  // messages, sums and data as measured, less the time in which the process of one of their ranks
  // stood still.
  const sim::Durations& usual() const { return usual_; }

  double StepTime(const sim::Durations& durations) const;

 private:
  MeasuredStep() = default;

  std::vector<program::Program> programs_;
  trace::StepWindow window_;
  sim::Durations usual_;
};

// `durations` with all instructions of one sort taking no time.
sim::Durations WithFree(const MeasuredStep& step, sim::Durations durations, Work work);

// With every compute instruction taking the mean of its kind over all ranks: the same work.
sim::Durations Balanced(const MeasuredStep& step, sim::Durations durations);

// Compute of each rank.
std::vector<double> BusySeconds(const MeasuredStep& step, const sim::Durations& durations);

}  // namespace takt::explain
