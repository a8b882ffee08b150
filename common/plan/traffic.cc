// SPDX-License-Identifier: Apache-2.0
#include "common/plan/traffic.h"

#include <map>
#include <string>
#include <utility>

#include "common/profile/parameter_counts.h"

namespace takt::plan {
namespace {

using Pair = std::pair<PpRank, PpRank>;  // from, to

// Returns the bytes of the gradients of a stage.
double GradientBytes(const model::Model& model, const mesh::Stage& stage) {
  double elements = 0;
  for (int i = stage.first_layer.value(); i < stage.last_layer.value(); ++i)
    elements += profile::GradientElements(model, model.layers[i]);
  return sizeof(float) * elements;
}

// Returns the bytes of the gradients that both ends of each pipeline sum.
double TiedBytes(const Plan& plan) {
  double elements = 0;
  for (const std::string& name : plan.model.layers.back().tied_parameters)
    elements += static_cast<double>(plan.model.Find(name)->elements());
  return sizeof(float) * elements;
}

}  // namespace

std::vector<Messages> MessagesOf(const std::vector<program::Program>& programs) {
  std::map<Pair, Messages> by_pair;
  for (const program::Program& program : programs) {
    for (const program::Instruction& instruction : program.body) {
      if (instruction.op != program::Op::kSend) continue;
      const PpRank to = program.lanes[instruction.lane.value()].peer;
      Messages& messages = by_pair[{program.pp_rank, to}];
      messages.from = program.pp_rank;
      messages.to = to;
      ++messages.count;
      if (instruction.reads.empty()) continue;
      messages.bytes += program.slots[instruction.reads.front().value()].bytes;
    }
  }
  std::vector<Messages> all;
  for (const auto& [pair, messages] : by_pair) all.push_back(messages);
  return all;
}

std::vector<SumTraffic> SumTrafficOf(const Plan& plan) {
  std::map<Pair, double> bytes;
  bool mirrored = false;
  for (const mesh::Stage& stage : plan.partition) {
    std::vector<PpRank> holders = {stage.pp_rank};
    const PpRank mirror = plan.programs[stage.pp_rank.value()].mirror;
    if (mirror.value() >= 0) {
      holders.push_back(mirror);
      mirrored = true;
    }
    const int group = static_cast<int>(holders.size()) * plan.mesh.dp_size;
    if (group < 2) continue;
    for (const PpRank from : holders) {
      for (const PpRank to : holders)
        bytes[{from, to}] += 2 * GradientBytes(plan.model, stage) / group;
    }
  }
  std::vector<SumTraffic> all;
  for (const auto& [pair, sent] : bytes)
    all.push_back({.from = pair.first, .to = pair.second, .bytes = sent});
  // With two copies of the weights each end has both uses of the embedding.
  const PpRank first = plan.partition.front().pp_rank, last = plan.partition.back().pp_rank;
  const double tied = TiedBytes(plan);
  if (first == last || mirrored || tied == 0) return all;
  all.push_back({.from = first, .to = last, .within_pipeline = true, .bytes = tied});
  all.push_back({.from = last, .to = first, .within_pipeline = true, .bytes = tied});
  return all;
}

}  // namespace takt::plan
