// SPDX-License-Identifier: Apache-2.0
#include "common/plan/refine.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/plan/ranking.h"
#include "common/plan/spread.h"
#include "common/plan/stage_costs.h"
#include "common/schedule/spread_vocabulary.h"

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

// A descent changes these.
struct Cuts {
  mesh::Partition partition;
  mesh::VocabularyEnds vocabulary_ends;
};

// Moves a block of words over the border after `rank`, up or down. Nullopt: there is none.
std::optional<mesh::VocabularyEnds> Moved(mesh::VocabularyEnds ends, int rank, int shift) {
  const int least = rank == 0 ? 0 : ends[rank - 1], most = ends[rank + 1];
  ends[rank] += shift;
  if (ends[rank] < least || ends[rank] > most) return std::nullopt;
  return ends;
}

// Returns for how long the busiest rank computes in a step.
double BusySeconds(const CandidateInputs& inputs, const Candidate& candidate, const Cuts& cuts) {
  const cost::Costs costs = CostsOf(inputs, cuts.partition, cuts.vocabulary_ends);
  std::vector<double> busy(candidate.plan.mesh.pp_size, 0);
  for (const mesh::Stage& stage : cuts.partition)
    busy[stage.pp_rank.value()] +=
        costs.F(stage.id) + std::min(costs.B(stage.id), costs.I(stage.id) + costs.W(stage.id));
  for (PpRank rank(0); rank.value() < std::ssize(cuts.vocabulary_ends); ++rank)
    busy[rank.value()] += costs.S(rank) + costs.T(rank);
  return std::ranges::max(busy) * candidate.plan.schedule.num_microbatches;
}

// Says which cuts may move.
struct Movable {
  bool layers = true, words = false;
};

// Looks for better cuts than those of one candidate.
class Descent {
 public:
  Descent(const CandidateInputs& inputs, const Candidate& candidate, Movable movable)
      : inputs_(inputs),
        candidate_(candidate),
        movable_(movable),
        // Other cuts have other times, so S and T are placed anew. The rest keeps its order.
        order_(WithoutVocabulary(candidate.plan.schedule)),
        cuts_{candidate.plan.partition, candidate.plan.vocabulary_ends},
        most_busy_(BusySeconds(inputs, candidate, cuts_) * kAsBusy),
        step_(candidate.makespan),
        simulations_(kSimulatedActions / (std::int64_t{3} * std::ssize(cuts_.partition) *
                                          candidate.plan.schedule.num_microbatches)) {}

  // Takes the best move of one layer or block of words. Returns whether there was a good one.
  bool Improve() {
    best_.reset();
    least_ = step_ * (1 - kGain);
    if (movable_.layers) TryLayers();
    if (movable_.words) TryWords();
    if (!best_) return false;
    cuts_ = *std::move(best_);
    step_ = least_;
    return true;
  }

  absl::StatusOr<Candidate> Take() const {
    ASSIGN_OR_RETURN(schedule::Schedule schedule, ScheduleOf(cuts_));
    return FromPartition(inputs_, std::move(schedule), cuts_.partition, cuts_.vocabulary_ends);
  }

 private:
  void TryLayers() {
    const int num_stages = static_cast<int>(cuts_.partition.size());
    const int farthest = num_stages <= kStagesForAllPairs ? num_stages : 1;
    for (int from = 0; from < num_stages; ++from) {
      if (NumLayers(cuts_.partition[from]) < 2) continue;
      const int end = std::min(num_stages, from + farthest + 1);
      for (int to = std::max(0, from - farthest); to < end; ++to) {
        if (to != from) Try({Moved(cuts_.partition, from, to), cuts_.vocabulary_ends});
      }
    }
  }

  void TryWords() {
    for (int rank = 0; rank + 1 < std::ssize(cuts_.vocabulary_ends); ++rank) {
      for (const int shift : {-1, 1}) {
        if (auto moved = Moved(cuts_.vocabulary_ends, rank, shift))
          Try({cuts_.partition, *std::move(moved)});
      }
    }
  }

  void Try(Cuts cuts) {
    const std::optional<double> step = StepOf(cuts);
    if (!step || *step >= least_) return;
    least_ = *step;
    best_ = std::move(cuts);
  }

  absl::StatusOr<schedule::Schedule> ScheduleOf(const Cuts& cuts) const {
    if (cuts.vocabulary_ends.empty()) return order_;
    // The order already has room for the meetings, so nothing moves again (depth 0).
    return schedule::SpreadVocabulary(
        order_, CostsOf(inputs_, cuts.partition, cuts.vocabulary_ends), /*depth=*/0);
  }

  // Nullopt: a rank would be busier than any was, or enough was simulated.
  std::optional<double> StepOf(const Cuts& cuts) {
    if (simulations_ == 0 || BusySeconds(inputs_, candidate_, cuts) > most_busy_) return {};
    --simulations_;
    const absl::StatusOr<schedule::Schedule> schedule = ScheduleOf(cuts);
    if (!schedule.ok()) return {};
    const absl::StatusOr<sim::Report> report =
        SimulateOver(inputs_, *schedule, cuts.partition, cuts.vocabulary_ends);
    if (!report.ok()) return {};
    return report->makespan;
  }

  const CandidateInputs& inputs_;
  const Candidate& candidate_;
  const Movable movable_;
  const schedule::Schedule order_;
  Cuts cuts_;  // the best so far
  const double most_busy_;
  double step_;
  std::int64_t simulations_;  // that are left
  std::optional<Cuts> best_;  // of the moves that were tried last
  double least_ = 0;          // its step
};

}  // namespace

Candidate WithBetterPartition(const CandidateInputs& inputs, Candidate candidate) {
  const bool is_fixed = candidate.plan.mesh.pp_size == 1 ||
                        candidate.plan.schedule.placement == schedule::Placement::kBidirectional ||
                        candidate.plan.schedule.updates != schedule::Updates::kFlush;
  const Movable movable = {.layers = inputs.job.parallelism.stage_layers.empty(),
                           .words = !candidate.plan.vocabulary_ends.empty()};
  if (is_fixed || (!movable.layers && !movable.words)) return candidate;
  Descent descent(inputs, candidate, movable);
  if (!descent.Improve()) return candidate;
  while (descent.Improve()) {
  }
  absl::StatusOr<Candidate> better = descent.Take();
  if (!better.ok()) return candidate;
  const bool still_fits = Fits(*better, inputs.options) || !Fits(candidate, inputs.options);
  return still_fits ? *std::move(better) : std::move(candidate);
}

}  // namespace takt::plan
