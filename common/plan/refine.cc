// SPDX-License-Identifier: Apache-2.0
#include "common/plan/refine.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "common/plan/ranking.h"
#include "common/plan/stage_costs.h"

namespace takt::plan {
namespace {

// Steps with so many actions in all are simulated for a candidate. That takes about half a second.
constexpr std::int64_t kSimulatedActions = 500'000;

// If there are more stages than this, layers move between neighbours alone.
constexpr int kStagesForAllPairs = 16;

// A step must become shorter by this share to count.
constexpr double kGain = 1e-4;

// Busy times whose ratio is no more than this are equal but for rounding.
constexpr double kAsBusy = 1 + 1e-9;

int NumLayers(const mesh::Stage& stage) {
  return stage.last_layer.value() - stage.first_layer.value();
}

// Moves a layer of one stage to another. Those between give one and take one.
mesh::Partition Moved(mesh::Partition partition, int from, int to) {
  const int shift = from < to ? -1 : 1;
  for (int stage = std::min(from, to); stage < std::max(from, to); ++stage) {
    const LayerId border(partition[stage].last_layer.value() + shift);
    partition[stage].last_layer = border;
    partition[stage + 1].first_layer = border;
  }
  return partition;
}

// Returns for how long the busiest rank computes in a step.
double BusySeconds(const CandidateInputs& inputs, const Candidate& candidate,
                   const mesh::Partition& partition) {
  const cost::Costs costs = CostsOf(inputs, partition);
  std::vector<double> busy(candidate.plan.mesh.pp_size, 0);
  for (const mesh::Stage& stage : partition)
    busy[stage.pp_rank.value()] +=
        costs.F(stage.id) + std::min(costs.B(stage.id), costs.I(stage.id) + costs.W(stage.id));
  return std::ranges::max(busy) * candidate.plan.schedule.num_microbatches;
}

// Looks for a better partition than that of one candidate.
class Descent {
 public:
  Descent(const CandidateInputs& inputs, const Candidate& candidate)
      : inputs_(inputs),
        candidate_(candidate),
        most_busy_(BusySeconds(inputs, candidate, candidate.plan.partition) * kAsBusy),
        partition_(candidate.plan.partition),
        step_(candidate.report.makespan),
        simulations_(kSimulatedActions / (std::int64_t{3} * std::ssize(partition_) *
                                          candidate.plan.schedule.num_microbatches)) {}

  // Takes the best move of one layer. Returns whether there was a good one.
  bool Improve() {
    std::optional<mesh::Partition> best;
    double least = step_ * (1 - kGain);
    const int num_stages = static_cast<int>(partition_.size());
    const int farthest = num_stages <= kStagesForAllPairs ? num_stages : 1;
    for (int from = 0; from < num_stages; ++from) {
      if (NumLayers(partition_[from]) < 2) continue;
      const int end = std::min(num_stages, from + farthest + 1);
      for (int to = std::max(0, from - farthest); to < end; ++to) {
        if (to == from) continue;
        mesh::Partition moved = Moved(partition_, from, to);
        const std::optional<double> step = StepOf(moved);
        if (!step || *step >= least) continue;
        least = *step;
        best = std::move(moved);
      }
    }
    if (!best) return false;
    partition_ = *std::move(best);
    step_ = least;
    return true;
  }

  const mesh::Partition& partition() const { return partition_; }

 private:
  // Nullopt: a rank would be busier than any was, or enough was simulated.
  std::optional<double> StepOf(const mesh::Partition& partition) {
    if (simulations_ == 0 || BusySeconds(inputs_, candidate_, partition) > most_busy_) return {};
    --simulations_;
    const absl::StatusOr<sim::Report> report =
        SimulateOver(inputs_, candidate_.plan.schedule, partition);
    if (!report.ok()) return {};
    return report->makespan;
  }

  const CandidateInputs& inputs_;
  const Candidate& candidate_;
  const double most_busy_;
  mesh::Partition partition_;  // the best so far
  double step_;
  std::int64_t simulations_;  // that are left
};

}  // namespace

Candidate WithBetterPartition(const CandidateInputs& inputs, Candidate candidate) {
  const bool is_fixed = !inputs.job.parallelism.stage_layers.empty() ||
                        candidate.plan.mesh.pp_size == 1 ||
                        candidate.plan.schedule.placement == schedule::Placement::kBidirectional ||
                        candidate.plan.schedule.updates != schedule::Updates::kFlush;
  if (is_fixed) return candidate;
  Descent descent(inputs, candidate);
  if (!descent.Improve()) return candidate;
  while (descent.Improve()) {
  }
  absl::StatusOr<Candidate> better =
      FromPartition(inputs, candidate.plan.schedule, descent.partition());
  if (!better.ok()) return candidate;
  const bool still_fits = Fits(*better, inputs.options) || !Fits(candidate, inputs.options);
  return still_fits ? *std::move(better) : std::move(candidate);
}

}  // namespace takt::plan
