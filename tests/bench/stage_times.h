// SPDX-License-Identifier: Apache-2.0
// Collects the times of F, I, W, B and O on each stage, in the form that the simulator needs.
#pragma once

#include <array>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "common/cost/costs.h"
#include "common/program/program.h"

namespace takt::bench {

class StageTimes {
 public:
  static constexpr std::array kKinds = {program::Op::kForward, program::Op::kInputGrad,
                                        program::Op::kWeightGrad, program::Op::kBackward,
                                        program::Op::kOverlap};

  explicit StageTimes(int num_stages) : by_stage_(num_stages) {}

  int num_stages() const { return static_cast<int>(by_stage_.size()); }

  // Ignores instructions of other kinds.
  void Add(const program::Instruction& instruction, double seconds);
  void Add(const StageTimes& other);

  // Returns 0 if there was none.
  double MeanSeconds(program::Op kind, StageId stage) const;
  double MeanSeconds(program::Op kind) const;  // the mean over the stages that have it

  // A stage without instructions of a kind gets the mean of the stages that have them, but for B
  // its own I and W if it has them. A kind that no stage has is 0, and O is
  // F and B.
  cost::Costs Costs() const;

  // Another process can read this back.
  nlohmann::json ToJson() const;
  static StageTimes FromJson(const nlohmann::json& json);

 private:
  struct Sum {
    double seconds = 0;
    int count = 0;
  };
  std::vector<std::array<Sum, kKinds.size()>> by_stage_;
};

}  // namespace takt::bench
