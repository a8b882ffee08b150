// SPDX-License-Identifier: Apache-2.0
#include "common/plan/traffic.h"

#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "common/profile/parameter_counts.h"

namespace takt::plan {
namespace {

using Pair = std::pair<PpRank, PpRank>;  // from, to

// Returns the bytes of the gradients of a stage.
double GradientBytes(const Plan& plan, const mesh::Stage& stage) {
  const bool spread = !plan.vocabulary_ends.empty();
  double elements = 0;
  for (int i = stage.first_layer.value(); i < stage.last_layer.value(); ++i)
    elements += profile::GradientElements(plan.model, plan.model.layers[i], spread);
  return sizeof(float) * elements;
}

// Returns the bytes of the gradients that both ends of each pipeline sum.
double TiedBytes(const Plan& plan) {
  double elements = 0;
  for (const std::string& name : plan.model.layers.back().tied_parameters)
    elements += static_cast<double>(plan.model.Find(name)->elements());
  return sizeof(float) * elements;
}

// Returns the rank that shares the norm's output with all others, or rank -1 if none does.
PpRank RootOf(const std::vector<program::Program>& programs) {
  for (const program::Program& program : programs) {
    for (const program::Instruction& each : program.body) {
      if (each.op == program::Op::kShare && !each.reads.empty()) return program.pp_rank;
    }
  }
  return PpRank(-1);
}

}  // namespace

std::vector<Messages> MessagesOf(const std::vector<program::Program>& programs) {
  std::map<Pair, Messages> by_pair;
  const auto add = [&](Pair pair, const program::Program& program,
                       const std::vector<SlotId>& slots) {
    Messages& messages = by_pair[pair];
    messages.from = pair.first;
    messages.to = pair.second;
    ++messages.count;
    if (!slots.empty()) messages.bytes += program.slots[slots.front().value()].bytes;
  };
  const PpRank root = RootOf(programs);
  for (const program::Program& program : programs) {
    const PpRank rank = program.pp_rank;
    for (const program::Instruction& each : program.body) {
      if (each.op == program::Op::kSend) {
        add({rank, program.lanes[each.lane.value()].peer}, program, each.reads);
      } else if (each.op == program::Op::kShare && rank != root) {
        add({root, rank}, program, each.writes);
      } else if (each.op == program::Op::kReturn && rank != root) {
        add({rank, root}, program, each.reads);
      }
    }
  }
  std::vector<Messages> all;
  for (const auto& [pair, messages] : by_pair) all.push_back(messages);
  return all;
}

std::vector<SumTraffic> SumTrafficOf(const Plan& plan) {
  std::map<Pair, double> bytes;
  bool mirrored = false;
  const double parts = plan.costs.terms + 1;  // all terms there, and the sum back
  for (const mesh::Stage& stage : plan.partition) {
    std::vector<PpRank> holders = {stage.pp_rank};
    const PpRank mirror = plan.programs[stage.pp_rank.value()].mirror;
    if (mirror.value() >= 0) {
      holders.push_back(mirror);
      mirrored = true;
    }
    const int group = static_cast<int>(holders.size()) * plan.mesh.num_replicas();
    if (group < 2) continue;
    for (const PpRank from : holders) {
      for (const PpRank to : holders)
        bytes[{from, to}] += parts * GradientBytes(plan, stage) / group;
    }
  }
  for (PpRank rank(0); rank.value() < std::ssize(plan.vocabulary_ends); ++rank) {
    if (plan.mesh.num_replicas() < 2) break;
    const double rows = profile::RowElements(plan.model, plan.vocabulary_ends, rank);
    bytes[{rank, rank}] += 2 * sizeof(float) * rows / plan.mesh.num_replicas();
  }
  std::vector<SumTraffic> all;
  for (const auto& [pair, sent] : bytes)
    all.push_back({.from = pair.first, .to = pair.second, .bytes = sent});
  // With two copies of the weights each end has both uses of the embedding, and each rank has both
  // uses of its words.
  const PpRank first = plan.partition.front().pp_rank, last = plan.partition.back().pp_rank;
  const double tied = TiedBytes(plan);
  if (first == last || mirrored || tied == 0 || !plan.vocabulary_ends.empty()) return all;
  all.push_back({.from = first, .to = last, .within_pipeline = true, .bytes = tied});
  all.push_back({.from = last, .to = first, .within_pipeline = true, .bytes = tied});
  return all;
}

}  // namespace takt::plan
