// SPDX-License-Identifier: Apache-2.0
#include "common/search/compact.h"

#include <algorithm>
#include <array>
#include <deque>
#include <utility>

namespace takt::search {
namespace {

class Compaction {
 public:
  Compaction(const Problem& problem, const Rows& rows, int window)
      : problem_(problem),
        window_(window),
        ranks_(problem.num_ranks),
        holders_(problem.holders.size()),
        arrival_(problem.num_items, kNever),
        gradient_arrival_(problem.num_items, kNever),
        result_(problem.num_ranks) {
    for (int rank = 0; rank < problem.num_ranks; ++rank)
      ranks_[rank].left.assign(rows[rank].begin(), rows[rank].end());
    for (const Holder& holder : problem.holders) {
      if (holder.previous < 0) {
        std::fill_n(arrival_.begin() + holder.first_item, holder.count, 0.0);
      }
      if (holder.next < 0) {
        std::fill_n(gradient_arrival_.begin() + holder.first_item, holder.count, 0.0);
      }
    }
  }

  Rows Run() {
    while (true) {
      int next = -1;
      for (int rank = 0; rank < problem_.num_ranks; ++rank) {
        const RankState& state = ranks_[rank];
        if (state.stalled || state.left.empty()) continue;
        if (next < 0 || state.clock < ranks_[next].clock) next = rank;
      }
      if (next < 0) break;
      Step(next);
    }
    // Actions that could not run keep their order.
    for (int rank = 0; rank < problem_.num_ranks; ++rank) {
      result_[rank].insert(result_[rank].end(), ranks_[rank].left.begin(), ranks_[rank].left.end());
    }
    return std::move(result_);
  }

 private:
  struct RankState {
    std::deque<search::Step> left;
    double clock = 0;
    bool stalled = false;
    std::int64_t held = 0;    // from F to W
    std::deque<int> pending;  // holders of I without W
    std::int64_t pending_weight = 0;
  };
  struct HolderState {
    int forwards = 0, gradients = 0;
    int arrived = 0, gradients_arrived = 0;
  };

  // The time at which the input of the next `kind` of the holder is there.
  double InputOf(const search::Step& step) const {
    const Holder& holder = problem_.holders[step.holder];
    const HolderState& state = holders_[step.holder];
    if (step.kind == Kind::kForward) return arrival_[holder.first_item + state.forwards];
    if (state.gradients >= state.forwards) return kNever;
    return gradient_arrival_[holder.first_item + state.gradients];
  }

  // Runs the first action in the row that can start now.
  void Step(int rank) {
    RankState& state = ranks_[rank];
    const int count = std::min<int>(window_, static_cast<int>(state.left.size()));
    double soonest = kNever;
    // The amount that is held after all W that could have run. It bounds what the actions before
    // the candidate may reach.
    std::int64_t base = state.held - state.pending_weight, reach = base, highest = base;
    std::vector<search::Step> seen;
    for (int i = 0; i < count; ++i) {
      const search::Step step = state.left[i];
      const std::int64_t weight = problem_.holders[step.holder].weight;
      const bool forward = step.kind == Kind::kForward;
      const bool first_of_its_kind = std::find(seen.begin(), seen.end(), step) == seen.end();
      if (first_of_its_kind) {
        seen.push_back(step);
        const double input = InputOf(step);
        const bool room = !forward || std::max(highest, reach) + weight <= problem_.limit[rank];
        if (room && input <= state.clock) {
          state.left.erase(state.left.begin() + i);
          Execute(rank, step);
          return;
        }
        if (room) soonest = std::min(soonest, input);
      }
      reach += forward ? weight : -weight;
      highest = std::max(highest, reach);
    }
    if (!state.pending.empty()) {
      const Holder& holder = problem_.holders[state.pending.front()];
      if (state.clock + holder.weight_grad <= soonest) {
        RunWeightGrad(rank);
        return;
      }
    }
    if (soonest == kNever) {
      state.stalled = true;
    } else {
      state.clock = soonest;
    }
  }

  void RunWeightGrad(int rank) {
    RankState& state = ranks_[rank];
    const Holder& holder = problem_.holders[state.pending.front()];
    state.pending.pop_front();
    state.clock += holder.weight_grad;
    state.held -= holder.weight;
    state.pending_weight -= holder.weight;
  }

  void Execute(int rank, search::Step step) {
    RankState& state = ranks_[rank];
    const Holder& holder = problem_.holders[step.holder];
    HolderState& done = holders_[step.holder];
    if (step.kind == Kind::kForward) {
      while (state.held + holder.weight > problem_.limit[rank] && !state.pending.empty())
        RunWeightGrad(rank);
      state.held += holder.weight;
      ++done.forwards;
      state.clock += holder.forward;
      if (holder.next >= 0) {
        const Holder& to = problem_.holders[holder.next];
        Arrive(arrival_[to.first_item + holders_[holder.next].arrived++], to,
               state.clock + to.activation.latency + to.activation.occupies);
      }
    } else {
      ++done.gradients;
      state.clock += holder.input_grad;
      state.pending.push_back(step.holder);
      state.pending_weight += holder.weight;
      if (holder.previous >= 0) {
        const Holder& to = problem_.holders[holder.previous];
        Arrive(gradient_arrival_[to.first_item + holders_[holder.previous].gradients_arrived++], to,
               state.clock + holder.gradient.latency + holder.gradient.occupies);
      }
    }
    result_[rank].push_back(step);
  }

  void Arrive(double& arrival, const Holder& to, double when) {
    arrival = when;
    RankState& state = ranks_[to.rank];
    if (!state.stalled) return;
    state.stalled = false;
    state.clock = std::max(state.clock, when);
  }

  const Problem& problem_;
  const int window_;
  std::vector<RankState> ranks_;
  std::vector<HolderState> holders_;
  std::vector<double> arrival_, gradient_arrival_;
  Rows result_;
};

}  // namespace

Rows Compact(const Problem& problem, const Rows& rows, int window) {
  return Compaction(problem, rows, window).Run();
}

Rows Extend(const Problem& from, const Rows& rows, const std::vector<std::vector<double>>& starts,
            const Problem& to, int first, int period) {
  // The times at which each F and I of a holder begins, by microbatch.
  std::vector<std::array<std::vector<double>, 2>> times(from.holders.size());
  for (int rank = 0; rank < from.num_ranks; ++rank) {
    for (std::size_t i = 0; i < rows[rank].size(); ++i) {
      const Step step = rows[rank][i];
      times[step.holder][step.kind == Kind::kForward ? 0 : 1].push_back(starts[rank][i]);
    }
  }
  double distance = 0;  // of two microbatches, the mean over all that repeats
  for (const auto& of_holder : times) {
    for (const std::vector<double>& of_kind : of_holder)
      distance += (of_kind[first + period] - of_kind[first]) / period;
  }
  distance /= 2.0 * static_cast<double>(times.size());

  Rows result;
  for (int rank = 0; rank < from.num_ranks; ++rank) {
    std::vector<std::pair<double, Step>> timed;
    for (const int h : from.holders_of_rank[rank]) {
      const int count = to.holders[h].count, added = count - from.holders[h].count;
      for (const Kind kind : {Kind::kForward, Kind::kInputGrad}) {
        const std::vector<double>& old = times[h][kind == Kind::kForward ? 0 : 1];
        for (int m = 0; m < count; ++m) {
          const int cycles = (m - first) / period;
          const double time = m < first ? old[m]
                              : m >= first + added
                                  ? old[m - added] + added * distance
                                  : old[first + (m - first) % period] + cycles * period * distance;
          timed.emplace_back(time, Step{static_cast<std::int16_t>(h), kind});
        }
      }
    }
    std::stable_sort(timed.begin(), timed.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    Row& row = result.emplace_back();
    for (const auto& [time, step] : timed) row.push_back(step);
  }
  return result;
}

}  // namespace takt::search
