// SPDX-License-Identifier: Apache-2.0
#include "common/sim/critical_path.h"

#include <algorithm>
#include <optional>

namespace takt::sim {
namespace {

using program::Op;
using program::Program;
using After = CriticalLink::After;
using Place = Machine::Place;

bool IsReduction(Op op) {
  return op == Op::kReduceGrad || op == Op::kReduceTied || op == Op::kGatherWeights ||
         op == Op::kUnshard;
}

// Norms and loads take no time of their own, so the path shows what is around them.
bool IsShown(Op op) {
  return program::IsCompute(op) || program::IsMeeting(op) || op == Op::kSend ||
         op == Op::kOptimizer || op == Op::kSpeculate || IsReduction(op);
}

class Backtracker {
 public:
  Backtracker(const std::vector<Program>& programs, const Machine& machine)
      : programs_(programs), machine_(machine) {}

  std::vector<CriticalLink> Run(Place last) const {
    std::vector<CriticalLink> path;
    double end = At(last).end;
    for (std::optional<Place> shown = last; shown.has_value();) {
      const Place place = *shown;
      bool passes_barrier = false;
      shown = Cause(place);
      while (shown.has_value() && !IsShown(OpAt(*shown))) {
        passes_barrier |= OpAt(*shown) == Op::kNormExchange && shown->rank == place.rank;
        shown = Cause(*shown);
      }
      const program::Program& program = programs_[place.rank];
      path.push_back({.after = WaitedFor(place, shown, passes_barrier),
                      .pp_rank = place.rank,
                      .instruction = place.instruction,
                      .action = ToString(program.body[place.instruction], program),
                      .start = At(place).start,
                      .end = end});
      end = path.back().start;
    }
    std::reverse(path.begin(), path.end());
    return path;
  }

 private:
  Op OpAt(Place place) const { return programs_[place.rank].body[place.instruction].op; }
  const Machine::Span& At(Place place) const {
    return machine_.At(0, place.rank, place.instruction);
  }

  // Returns what `place` waited for last. A message stands as its SEND. None: it began with the
  // step.
  std::optional<Place> Cause(Place place) const {
    const double start = At(place).start;
    if (start == 0) return std::nullopt;
    std::vector<Place> places = machine_.Partners(place);
    places.insert(places.begin(), place);
    for (const Place& each : places) {
      for (const Place& before : machine_.Predecessors(each)) {
        const bool received = OpAt(before) == Op::kRecv;
        // The lane of a RECV is free when that of its SEND is, which stands for both.
        if (received && OpAt(each) == Op::kRecv) continue;
        if (At(before).end == start) return received ? machine_.Partners(before).front() : before;
      }
    }
    return std::nullopt;
  }

  After WaitedFor(Place place, const std::optional<Place>& cause, bool passes_barrier) const {
    if (!cause.has_value()) return After::kNothing;
    if (passes_barrier && cause->rank != place.rank) return After::kOptimizer;
    if (IsReduction(OpAt(*cause))) return After::kReduction;
    const bool passed = OpAt(*cause) == Op::kSend || program::IsMeeting(OpAt(*cause));
    if (passed) return After::kMessage;
    if (cause->rank == place.rank) return After::kSameRank;
    return IsReduction(OpAt(place)) ? After::kReduction : After::kMessage;
  }

  const std::vector<Program>& programs_;
  const Machine& machine_;
};

}  // namespace

std::vector<CriticalLink> FindCriticalPath(const std::vector<Program>& programs,
                                           const Machine& machine, Place last) {
  return Backtracker(programs, machine).Run(last);
}

}  // namespace takt::sim
