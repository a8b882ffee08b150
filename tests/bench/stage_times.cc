// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/stage_times.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace takt::bench {
namespace {

std::size_t IndexOf(program::Op kind) {
  return static_cast<std::size_t>(std::ranges::find(StageTimes::kKinds, kind) -
                                  StageTimes::kKinds.begin());
}

}  // namespace

void StageTimes::Add(const program::Instruction& instruction, double seconds) {
  const std::size_t kind = IndexOf(instruction.op);
  if (kind == kKinds.size()) return;
  Sum& sum = by_stage_[instruction.stage.value()][kind];
  sum.seconds += seconds;
  ++sum.count;
}

void StageTimes::Add(const StageTimes& other) {
  for (std::size_t stage = 0; stage < by_stage_.size(); ++stage) {
    for (std::size_t kind = 0; kind < kKinds.size(); ++kind) {
      by_stage_[stage][kind].seconds += other.by_stage_[stage][kind].seconds;
      by_stage_[stage][kind].count += other.by_stage_[stage][kind].count;
    }
  }
}

double StageTimes::MeanSeconds(program::Op kind, StageId stage) const {
  const Sum& sum = by_stage_[stage.value()][IndexOf(kind)];
  return sum.count == 0 ? 0 : sum.seconds / sum.count;
}

double StageTimes::MeanSeconds(program::Op kind) const {
  double seconds = 0;
  int stages = 0;
  for (StageId stage(0); stage.value() < num_stages(); ++stage) {
    const double mean = MeanSeconds(kind, stage);
    seconds += mean;
    stages += mean > 0 ? 1 : 0;
  }
  return stages == 0 ? 0 : seconds / stages;
}

cost::Costs StageTimes::Costs() const {
  cost::Costs costs;
  const auto seconds_of = [&](program::Op kind, StageId stage) {
    const double seconds = MeanSeconds(kind, stage);
    return seconds > 0 ? seconds : MeanSeconds(kind);
  };
  for (const auto& [kind, list] : {std::pair(program::Op::kForward, &costs.forward),
                                   {program::Op::kInputGrad, &costs.input_grad},
                                   {program::Op::kWeightGrad, &costs.weight_grad},
                                   {program::Op::kBackward, &costs.backward}}) {
    list->clear();
    for (StageId stage(0); stage.value() < num_stages(); ++stage)
      list->push_back(seconds_of(kind, stage));
  }
  for (StageId stage(0); stage.value() < num_stages(); ++stage) {
    const double pair = seconds_of(program::Op::kOverlap, stage);
    costs.overlap.push_back(pair > 0 ? std::optional(pair) : std::nullopt);
  }
  for (StageId stage(0); stage.value() < num_stages(); ++stage) {
    const double parts =
        MeanSeconds(program::Op::kInputGrad, stage) + MeanSeconds(program::Op::kWeightGrad, stage);
    if (MeanSeconds(program::Op::kBackward, stage) == 0 && parts > 0)
      costs.backward[stage.value()] = parts;
  }
  return costs;
}

nlohmann::json StageTimes::ToJson() const {
  nlohmann::json stages = nlohmann::json::array();
  for (const auto& kinds : by_stage_) {
    nlohmann::json& stage = stages.emplace_back(nlohmann::json::array());
    for (const Sum& sum : kinds) stage.push_back({sum.seconds, sum.count});
  }
  return stages;
}

StageTimes StageTimes::FromJson(const nlohmann::json& json) {
  StageTimes times(static_cast<int>(json.size()));
  for (std::size_t stage = 0; stage < json.size(); ++stage) {
    for (std::size_t kind = 0; kind < kKinds.size(); ++kind) {
      const nlohmann::json& sum = json[stage][kind];
      times.by_stage_[stage][kind] = {sum[0].get<double>(), sum[1].get<int>()};
    }
  }
  return times;
}

}  // namespace takt::bench
