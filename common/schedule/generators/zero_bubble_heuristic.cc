// SPDX-License-Identifier: Apache-2.0
#include "common/schedule/generators/zero_bubble_heuristic.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/schedule/generators/generators.h"

namespace takt::schedule {
namespace {

struct Switches {
  bool idle_before_gradients;  // no warmup F that would end after the rank's first gradient arrives
  bool gradients_first;        // no F on a rank that is ahead when its next gradient is near
  bool overrun_gaps;           // a W may end after what the rank waits for has arrived
};

// The state of one rank while its row is made.
struct Worker {
  double forward = 0, input_grad = 0, weight_grad = 0;  // costs
  double from_above = 0, from_below = 0;                // latency of the messages it receives

  int num_forwards = 0, num_input_grads = 0, num_weight_grads = 0;
  double start = 0, clock = 0;
  double idle = 0;  // since the first F
  Row row;

  int InFlight() const { return num_forwards - num_weight_grads; }
  int Pending() const { return num_input_grads - num_weight_grads; }
};

class Plan {
 public:
  Plan(const GenerateOptions& options, int limit, Switches switches)
      : num_microbatches_(options.num_microbatches),
        limit_(limit),
        switches_(switches),
        forward_ends_(static_cast<std::size_t>(options.num_ranks) * num_microbatches_),
        input_grad_ends_(forward_ends_.size()) {
    const cost::Costs& costs = options.costs;
    const auto latency = [&](int from, int to) {
      return costs.Link(PpRank(from), PpRank(to)).latency;
    };
    for (int rank = 0; rank < options.num_ranks; ++rank) {
      const StageId stage(rank);
      Worker& worker = workers_.emplace_back(Worker{
          .forward = costs.F(stage), .input_grad = costs.I(stage), .weight_grad = costs.W(stage)});
      if (rank > 0) worker.from_above = latency(rank - 1, rank);
      if (rank + 1 < options.num_ranks) worker.from_below = latency(rank + 1, rank);
    }
  }

  // Makes the plan. It keeps the rows only if `keep_rows` is set.
  void Run(bool keep_rows) {
    keep_rows_ = keep_rows;
    WarmUp();
    for (int round = 1; round < num_microbatches_; ++round) {
      const std::vector<bool> forwards = ChooseForwards();
      for (int rank = 0; rank < num_ranks(); ++rank) {
        if (forwards[rank]) AddForward(rank);
      }
      for (int rank = num_ranks() - 1; rank >= 0; --rank) AddInputGrad(rank);
    }
    for (int rank = 0; rank < num_ranks(); ++rank) AddPending(rank);
  }

  // The makespan, and the longest span of a rank.
  std::pair<double, double> Lengths() const {
    double makespan = 0, span = 0;
    for (const Worker& worker : workers_) {
      makespan = std::max(makespan, worker.clock);
      span = std::max(span, worker.clock - worker.start);
    }
    return {makespan, span};
  }

  std::vector<Row> TakeRows() {
    std::vector<Row> rows;
    for (Worker& worker : workers_) rows.push_back(std::move(worker.row));
    return rows;
  }

 private:
  int num_ranks() const { return static_cast<int>(workers_.size()); }

  std::size_t Index(int rank, int microbatch) const {
    return static_cast<std::size_t>(rank) * num_microbatches_ + microbatch;
  }

  // Adds the first F of every rank, more F while its first gradient is on its way, and its first I.
  void WarmUp() {
    for (int rank = 0; rank < num_ranks(); ++rank) AddForward(rank);
    const std::vector<int> more = WarmupForwards();
    for (int rank = 0; rank < num_ranks(); ++rank) {
      for (int i = 0; i < more[rank]; ++i) AddForward(rank);
    }
    for (int rank = num_ranks() - 1; rank >= 0; --rank) AddInputGrad(rank);
  }

  std::vector<int> WarmupForwards() const {
    std::vector<int> more(workers_.size(), 0);
    double gradient = workers_.back().clock + workers_.back().input_grad;
    for (int rank = num_ranks() - 2; rank >= 0; --rank) {
      const Worker& worker = workers_[rank];
      const double arrival = gradient + worker.from_below;
      double clock = worker.clock;
      const auto fits = [&] {
        return switches_.idle_before_gradients ? clock + worker.forward <= arrival
                                               : clock < arrival;
      };
      while (1 + more[rank] < std::min(num_microbatches_, limit_) && fits()) {
        ++more[rank];
        clock += worker.forward;
      }
      gradient = std::max(clock, arrival) + worker.input_grad;
    }
    // Each rank runs fewer warmup F than the rank above it, unless that rank runs all of its F.
    for (int rank = 1; rank < num_ranks(); ++rank) {
      const int above = more[rank - 1];
      const bool all = 1 + above == num_microbatches_;
      more[rank] = std::min(more[rank], all ? above : std::max(above - 1, 0));
    }
    return more;
  }

  // Returns how long `worker` may still wait without becoming the one that has waited longest.
  double Slack(const Worker& worker) const { return longest_idle_ - worker.idle; }

  bool WantsForward(int rank) const {
    const Worker& worker = workers_[rank];
    if (worker.num_forwards == num_microbatches_) return false;
    if (!switches_.gradients_first || rank == num_ranks() - 1) return true;
    const Worker& below = workers_[rank + 1];
    if (worker.num_forwards < below.num_forwards + 2) return true;
    const double gradient = below.clock + below.forward + below.input_grad + worker.from_below;
    if (worker.clock >= gradient) return false;
    const int to_release = std::max(worker.InFlight() + 1 - limit_, 0);
    if (worker.clock + worker.forward + to_release * worker.weight_grad <= gradient) return true;
    return gradient - worker.clock > Slack(worker);
  }

  // A rank runs an F only if all below it do.
  std::vector<bool> ChooseForwards() const {
    std::vector<bool> chosen(workers_.size());
    for (int rank = num_ranks() - 1; rank >= 0; --rank) {
      chosen[rank] = WantsForward(rank) && (rank == num_ranks() - 1 || chosen[rank + 1]);
    }
    return chosen;
  }

  void AddForward(int rank) {
    Worker& worker = workers_[rank];
    while (worker.InFlight() == limit_) AddWeightGrad(rank);
    const int microbatch = worker.num_forwards;
    if (rank > 0) WaitUntil(rank, forward_ends_[Index(rank - 1, microbatch)] + worker.from_above);
    if (microbatch == 0) worker.start = worker.clock;
    Add(rank, ActionKind::kForward, worker.num_forwards++, worker.forward);
    forward_ends_[Index(rank, microbatch)] = worker.clock;
  }

  void AddInputGrad(int rank) {
    Worker& worker = workers_[rank];
    const int microbatch = worker.num_input_grads;
    // No rank waits for the gradients of rank 0, so at the end its W come first.
    if (rank == 0 && worker.num_forwards == num_microbatches_) AddPending(rank);
    if (rank + 1 < num_ranks()) {
      WaitUntil(rank, input_grad_ends_[Index(rank + 1, microbatch)] + worker.from_below);
    }
    Add(rank, ActionKind::kInputGrad, worker.num_input_grads++, worker.input_grad);
    input_grad_ends_[Index(rank, microbatch)] = worker.clock;
  }

  void AddPending(int rank) {
    while (workers_[rank].Pending() > 0) AddWeightGrad(rank);
  }

  void AddWeightGrad(int rank) {
    Worker& worker = workers_[rank];
    Add(rank, ActionKind::kWeightGrad, worker.num_weight_grads++, worker.weight_grad);
  }

  // Waits until `arrival`, and runs pending W meanwhile.
  void WaitUntil(int rank, double arrival) {
    Worker& worker = workers_[rank];
    while (worker.Pending() > 0 && worker.clock + worker.weight_grad <= arrival)
      AddWeightGrad(rank);
    if (worker.Pending() > 0 && worker.clock < arrival &&
        (switches_.overrun_gaps || arrival - worker.clock > Slack(worker))) {
      AddWeightGrad(rank);
    }
    if (worker.clock >= arrival) return;
    if (worker.num_forwards > 0) {
      worker.idle += arrival - worker.clock;
      longest_idle_ = std::max(longest_idle_, worker.idle);
    }
    worker.clock = arrival;
  }

  void Add(int rank, ActionKind kind, int microbatch, double cost) {
    workers_[rank].clock += cost;
    if (keep_rows_) workers_[rank].row.push_back({StageId(rank), kind, MicrobatchId(microbatch)});
  }

  int num_microbatches_, limit_;
  Switches switches_;
  bool keep_rows_ = false;
  std::vector<double> forward_ends_, input_grad_ends_;
  std::vector<Worker> workers_;
  double longest_idle_ = 0;
};

}  // namespace

Schedule BuildZeroBubbleHeuristic(const Family& family, const GenerateOptions& options, int limit) {
  Switches best{};
  std::pair<double, double> shortest;
  for (int variant = 7; variant >= 0; --variant) {
    const Switches switches{(variant & 4) != 0, (variant & 2) != 0, (variant & 1) != 0};
    Plan plan(options, limit, switches);
    plan.Run(/*keep_rows=*/false);
    // A difference that rounding explains does not count.
    const auto [makespan, span] = plan.Lengths();
    const double negligible = 1e-9 * makespan;
    const bool shorter =
        makespan < shortest.first - negligible ||
        (makespan < shortest.first + negligible && span < shortest.second - negligible);
    if (variant != 7 && !shorter) continue;
    best = switches;
    shortest = {makespan, span};
  }
  Plan plan(options, limit, best);
  plan.Run(/*keep_rows=*/true);
  return MakeSchedule(family, options, plan.TakeRows());
}

}  // namespace takt::schedule
