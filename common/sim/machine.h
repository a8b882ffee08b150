// SPDX-License-Identifier: Apache-2.0
// The machine that programs run on, without the work: lanes with one instruction at a time, waits
// between them, rendezvous of sends and receives, meetings of all ranks. Whether and in what order
// things complete does not depend on costs, so the lanes are advanced in any order and the times
// follow as maxima; no event queue is needed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/program/program.h"
#include "common/sim/simulate.h"

namespace takt::sim {

// Borrows programs and costs. Run once, then read.
class Machine {
 public:
  // programs: as CheckTogether wants them. costs: as CheckCosts wants them. steps: how often the
  // bodies run.
  Machine(const std::vector<program::Program>& programs, const cost::Costs& costs, int steps);

  // kInvalidArgument: two ends of a message do not match; or nothing can go on: what waits for
  // what.
  absl::Status Run();

  // The compute lane's instructions in order: when each began and ended, over all steps.
  struct Span {
    std::int32_t instruction = 0;  // index in the body
    double start = 0, end = 0;
  };
  std::vector<Span> ComputeSpans(int rank) const;

 private:
  struct LaneState {
    int rank = 0;
    std::int32_t id = 0;
    program::LaneKind kind = program::LaneKind::kCompute;
    int partner = -1;                        // the lane at the other end of a SEND or RECV lane
    std::vector<std::int32_t> instructions;  // indices in the body
    std::vector<double> starts, ends;        // of those completed, over all steps
    double free_at = 0;
    bool posted = false;        // the next instruction is ready and waits for other ranks
    double ready_at = 0;        // since when
    std::vector<int> sleepers;  // lanes of this rank that wait for this one

    std::int64_t num_done() const { return static_cast<std::int64_t>(ends.size()); }
  };
  // Instructions that complete together on several ranks.
  struct Meeting {
    int num_ranks = 0;
    std::vector<int> lanes;  // that have arrived
  };
  // An unmet wait: until that lane has completed its instruction number `position`, counted over
  // all steps.
  struct Blocker {
    int lane = 0;
    std::int64_t position = 0;
  };

  void Advance(int lane);
  void AdvanceMessage(int lane);
  void AdvanceMeeting(int lane, Meeting& meeting);
  void Complete(int lane, double start, double end, double free_at);
  std::optional<Blocker> FirstBlocker(const LaneState& state, double* ready_at) const;

  bool IsDone(const LaneState& state) const;
  const program::Instruction& Next(const LaneState& state) const;
  const std::vector<program::Wait>& NextWaits(const LaneState& state) const;
  Meeting* MeetingOf(program::Op op);
  double Duration(const program::Instruction& instruction) const;

  // The report of a machine at rest with work left.
  absl::Status Stalled() const;
  std::string Describe(const LaneState& state) const;
  // What `lane` waits for, in words, and the lane to look at next (-1: none can help).
  std::pair<std::string, int> WaitsFor(int lane) const;

  const std::vector<program::Program>& programs_;
  const cost::Costs& costs_;
  const int steps_;
  std::vector<std::vector<std::vector<program::Wait>>> waits_;  // [rank][instruction]
  std::vector<int> lane_begin_;                                 // first lane of each rank in lanes_
  std::vector<LaneState> lanes_;
  Meeting norm_exchange_, tied_;
  std::vector<int> work_;  // lanes that may be able to go on
  absl::Status mismatch_;
};

}  // namespace takt::sim
