// SPDX-License-Identifier: Apache-2.0
// What F, I, W, B and O took on each stage, as the simulator wants it told.
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

  // Instructions of other kinds are left out.
  void Add(const program::Instruction& instruction, double seconds);
  void Add(const StageTimes& other);

  // 0: there was none.
  double MeanSeconds(program::Op kind, StageId stage) const;
  double MeanSeconds(program::Op kind) const;  // over stages that have it

  // Where a stage has none of a kind, the mean over those that have; 0 for kinds that nobody has.
  cost::Costs Costs() const;

  // To another process and back.
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
