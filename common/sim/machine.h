// SPDX-License-Identifier: Apache-2.0
// A model of the machine that programs run on: lanes with one instruction at a time, waits between
// them, rendezvous of sends and receives, meetings of several ranks. Costs do not decide whether
// and in what order things complete. So the machine advances its lanes in any order, the times
// follow as maxima, and it needs no event queue.
#pragma once

#include <compare>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/cost/costs.h"
#include "common/program/program.h"
#include "common/sim/refusal.h"

namespace takt::sim {

// The time of each instruction, by rank and index in the body, instead of the cost of its kind. It
// counts from when the instruction may begin. For messages and meetings that is when all ends are
// there. A SEND keeps its lane and its slot that long, and a RECV its lane. The ends of a meeting
// may have different durations.
using Durations = std::vector<std::vector<double>>;

struct MachineOptions {
  int steps = 1;        // how often the bodies run
  bool barrier = true;  // false: NORM_EXCHANGE and EVAL let every rank pass
  // The messages of both directions from one rank to another share one queue instead of two.
  bool one_fifo_per_pair = false;
  const Durations* durations = nullptr;  // borrowed; null: as `costs` say
  // Goes with `durations`, and has the time of each meeting inside the instructions of the body, by
  // rank, in the order of program::MeetingOffsets. It counts from when all are there, and the
  // durations of the instructions are without it. Null: these meetings take no time. Borrowed.
  const Durations* meetings = nullptr;
  // The programs are those of chains side by side (SpreadOverCopies), and so many neighbours share
  // layers and meet inside F, I and W. With 1 of each, a rank waits for no other rank there.
  int tensor = 1, context = 1;
};

// Borrows programs and costs. Run is called once, and the results are read after it.
class Machine {
 public:
  // programs: as CheckTogether wants them. costs: as CheckCosts wants them.
  Machine(const std::vector<program::Program>& programs, const cost::Costs& costs,
          const MachineOptions& options);

  // Refuses if the two ends of a message do not match, or if nothing can go on: then it says what
  // waits for what.
  std::optional<Refusal> Run();

  struct Span {
    double start = 0, end = 0;
  };
  // After Run. SEND ends when its slot is free, RECV when the message has arrived.
  const Span& At(int step, int rank, std::int32_t instruction) const {
    return spans_[step * num_instructions_ + rank_begin_[rank] + instruction];
  }

  // Returns how long an instruction takes by its kind, without the meetings inside. It is not for
  // messages. A meeting of the vocabulary takes as long as all its bytes need over the slowest
  // link.
  double Duration(int rank, const program::Instruction& instruction) const;

  // Returns by how much the meetings inside an instruction lengthen it, by their bytes. In an O one
  // half computes while the other one meets. So an O takes the longest of three times: the
  // computation of both halves, the meetings of both, and one half with its meetings.
  double MeetingSeconds(int rank, const program::Instruction& instruction) const;

  // One instruction of one rank.
  struct Place {
    int rank = 0;
    std::int32_t instruction = 0;
    bool operator==(const Place&) const = default;
  };
  // After Run. The instructions of its rank that it waited for in the first step: the one before it
  // on its lane (first, if there is one), then those that its slots name.
  std::vector<Place> Predecessors(Place place) const;
  // After Run. The instructions of other ranks that began together with it, by rank: the other end
  // of a message, the others of a meeting.
  std::vector<Place> Partners(Place place) const;

 private:
  struct LaneState {
    int rank = 0;
    program::LaneKind kind = program::LaneKind::kCompute;
    PpRank peer{-1};
    int partner = -1;                        // the lane at the other end of a SEND or RECV lane
    std::vector<std::int32_t> instructions;  // indices in the body
    std::int64_t num_done = 0;               // over all steps
    std::size_t next = 0;                    // index into `instructions`
    int step = 0;
    double free_at = 0;
    bool posted = false;  // the next instruction is ready and waits for other ranks
    double ready_at = 0;  // since when
    // These are of the next instruction, if it has parts and has begun.
    bool in_parts = false;
    double began_at = 0;
    std::size_t part = 0;     // that comes next
    std::size_t num_met = 0;  // meetings before it
    // The lanes of this rank that wait for this one, each with how many instructions this one must
    // have done to let it go on.
    std::vector<std::pair<std::int64_t, int>> sleepers;
  };
  // The instructions that complete together on all ranks that have one.
  struct Meeting {
    std::vector<Place> places;  // all of them, by rank
    std::int64_t bytes = 0;     // that they pass together
    std::vector<int> lanes;     // that have arrived
  };
  // Instructions with the same key meet.
  struct MeetingKey {
    program::Op op = program::Op::kNormExchange;
    LayerId layer;
    MicrobatchId microbatch;
    // Tells meetings apart that look alike: rows of the tables are summed over the copies of one
    // pp rank, and the meetings of the vocabulary are within one copy of the pipeline.
    int group = 0;
    bool foreseen = false;  // of weights before OPT makes them
    int step_ahead = 0;
    auto operator<=>(const MeetingKey&) const = default;
  };
  // Meetings inside instructions. Those of ranks that share a layer have the same key.
  struct PartKey {
    program::PartGroup group = program::PartGroup::kTensor;
    int of = 0;  // number of the group of ranks
    program::Op op = program::Op::kForward;
    StageId stage;
    MicrobatchId microbatch;
    std::size_t part = 0;
    auto operator<=>(const PartKey&) const = default;
  };
  // An unmet wait. It lasts until that lane has completed its instruction number `position`,
  // counted over all steps.
  struct Blocker {
    int lane = 0;
    std::int64_t position = 0;
  };

  void AddRank(const program::Program& program);
  void PairMessageLanes();
  void CountMeetings();

  // Returns how long the next instruction of a lane takes, without the meetings inside. Not for
  // messages that have no durations.
  double NextDuration(const LaneState& state) const {
    return options_.durations == nullptr ? Duration(state.rank, Next(state))
                                         : (*options_.durations)[state.rank][NextIndex(state)];
  }

  void Advance(int lane);
  void AdvanceMessage(int lane);
  void AdvanceMeeting(int lane);
  void AdvanceParts(int lane);
  // Returns how long the meetings inside the next instruction of a lane take.
  double NextMeetings(const LaneState& state) const;
  // Returns how long the part takes that comes next on the lane.
  double PartSeconds(const LaneState& state, std::span<const program::Part> parts) const;
  double MeetingSeconds(int rank, const program::Part& meeting) const;
  // Returns the time of the meetings among these parts, one after the other.
  double SumOfMeetings(int rank, std::span<const program::Part> parts) const;
  void Complete(int lane, Span span, double free_at);
  std::optional<Blocker> FirstBlocker(const LaneState& state, double* ready_at) const;

  bool IsDone(const LaneState& state) const { return state.step == options_.steps; }
  std::int32_t NextIndex(const LaneState& state) const { return state.instructions[state.next]; }
  const program::Instruction& Next(const LaneState& state) const {
    return programs_[state.rank].body[NextIndex(state)];
  }
  program::Direction DirectionOf(const LaneState& state) const;
  bool Meets(const program::Instruction& instruction) const;
  MeetingKey KeyOf(int rank, const program::Instruction& instruction) const;
  // Returns the ranks that meet `rank` in meetings of this group, ascending, itself among them.
  std::vector<int> RanksOf(int rank, program::PartGroup group) const;
  PartKey KeyOf(const LaneState& state, const program::Part& meeting) const;
  int LaneOf(Place place) const { return lane_of_[rank_begin_[place.rank] + place.instruction]; }

  // The report of a machine at rest with work left.
  Refusal Stalled() const;
  std::string Describe(const LaneState& state) const;
  // Returns what `lane` waits for, in words, and the lane to look at next (-1: none can help).
  std::pair<std::string, int> WaitsFor(int lane) const;

  const std::vector<program::Program>& programs_;
  const cost::Costs& costs_;
  const MachineOptions options_;
  std::vector<program::WaitLists> waits_;  // by rank
  std::vector<int> lane_begin_;            // first lane of each rank in lanes_
  std::vector<std::size_t> rank_begin_;    // first instruction of each rank in spans_
  std::size_t num_instructions_ = 0;       // of one step on all ranks
  std::vector<int> lane_of_;               // by instruction of all ranks
  std::vector<int> num_reductions_;        // by stage: how many layers REDUCE_GRAD sums
  bool shards_ = false;                    // there are GATHER_WEIGHTS or UNSHARD
  std::vector<LaneState> lanes_;
  std::map<MeetingKey, Meeting> meetings_;
  std::map<PartKey, std::vector<int>> in_part_;        // lanes that have arrived
  std::vector<std::vector<std::size_t>> meetings_at_;  // by rank: MeetingOffsets, for `meetings`
  int num_copies_ = 1;                                 // of a pipeline that spreads the vocabulary
  cost::LinkCost slowest_link_;                        // for its meetings
  std::vector<Span> spans_;                            // by step, rank, instruction
  std::vector<int> work_;                              // lanes that may be able to go on
  std::optional<Refusal> mismatch_;
};

}  // namespace takt::sim
