// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <utility>

#include "common/base/id.h"
#include "common/program/program.h"
#include "common/trace/passes_alone.h"

namespace takt::profile {

// Compares the time of overlapped pairs whose halves ran side by side with that of their two passes
// alone, for one rank and one step. Other pairs are an F and a B, and take the time of both.
class PairRatio {
 public:
  // program: of the rank, and borrowed. halves_run_beside: where ranks meet inside pairs.
  PairRatio(const program::Program& program, bool halves_run_beside)
      : program_(program), halves_run_beside_(halves_run_beside) {}

  // Adds an instruction. seconds: its time without the meetings inside. Only F, I, W, B and O of
  // stages count; others are ignored.
  void Add(const program::Instruction& instruction, double seconds);

  // Returns the time of the pairs divided by that of their passes alone. Only pairs whose two
  // passes also ran alone count. Returns 0 if there are none.
  double Get() const;

 private:
  const program::Program& program_;
  const bool halves_run_beside_;
  trace::PassesAlone alone_;
  std::map<std::pair<StageId, StageId>, trace::TimeSum> pairs_;  // by the stages of F and B
};

}  // namespace takt::profile
