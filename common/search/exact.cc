// SPDX-License-Identifier: Apache-2.0
#include "common/search/exact.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace takt::search {
namespace {

class Solver {
 public:
  Solver(const Problem& problem, double known, std::int64_t max_states)
      : problem_(problem), max_states_(max_states), best_(known) {
    const std::size_t count = problem.holders.size();
    from_forward_.assign(count, 0);
    from_gradient_.assign(count, 0);
    for (std::size_t h = 0; h < count; ++h) {
      const Holder& holder = problem.holders[h];
      from_gradient_[h] =
          ShortestGradient(holder) +
          (holder.previous < 0 ? ShortestBackward(holder) - ShortestGradient(holder)
                               : Length(holder.gradient) + from_gradient_[holder.previous]);
    }
    for (std::size_t k = count; k-- > 0;) {
      const Holder& holder = problem.holders[k];
      from_forward_[k] =
          holder.forward + (holder.next < 0 ? from_gradient_[k]
                                            : Length(problem.holders[holder.next].activation) +
                                                  from_forward_[holder.next]);
    }
  }

  Exact Run() {
    Level level;
    State first;
    first.counts.assign(3 * problem_.holders.size(), 0);
    first.clocks.assign(problem_.num_ranks, 0);
    first.arrivals.assign(2 * problem_.num_items, kUnknown);
    for (const Holder& holder : problem_.holders) {
      for (int m = 0; m < holder.count; ++m) {
        if (holder.previous < 0) first.arrivals[holder.first_item + m] = 0;
        if (holder.next < 0) first.arrivals[problem_.num_items + holder.first_item + m] = 0;
      }
    }
    first.trace = -1;
    level[first.counts].push_back(std::move(first));
    while (!level.empty()) {
      Level next;
      for (const auto& [counts, states] : level) {
        for (const State& state : states) {
          if (++num_states_ > max_states_) return Result(false);
          Expand(state, next);
        }
      }
      level = std::move(next);
    }
    return Result(true);
  }

 private:
  static constexpr double kUnknown = -1;
  struct State {
    std::string counts;            // F, I, W done, by holder
    std::vector<double> clocks;    // by rank
    std::vector<double> arrivals;  // of inputs of F, then of I, by item; 0 once used
    std::int32_t trace = -1;
  };
  using Level = std::map<std::string, std::vector<State>>;
  struct Trace {
    std::int32_t before = -1;
    Step step;
  };

  static double Length(const Way& way) { return way.latency + way.occupies; }
  static double ShortestGradient(const Holder& h) { return std::min(h.input_grad, h.backward); }
  static double ShortestBackward(const Holder& h) {
    return std::min(h.input_grad + h.weight_grad, h.backward);
  }

  void Expand(const State& state, Level& next) {
    for (int rank = 0; rank < problem_.num_ranks; ++rank) {
      for (const int h : problem_.holders_of_rank[rank]) {
        const Holder& holder = problem_.holders[h];
        const int forwards = state.counts[3 * h], gradients = state.counts[3 * h + 1];
        const int weight_grads = state.counts[3 * h + 2];
        if (forwards < holder.count && Held(state, rank) + holder.weight <= problem_.limit[rank])
          Append(state, h, Kind::kForward, next);
        if (gradients < forwards) {
          Append(state, h, Kind::kInputGrad, next);
          if (weight_grads == gradients && holder.backward < holder.input_grad + holder.weight_grad)
            Append(state, h, Kind::kBackward, next);
        }
        if (weight_grads < gradients) Append(state, h, Kind::kWeightGrad, next);
      }
    }
  }

  std::int64_t Held(const State& state, int rank) const {
    std::int64_t held = 0;
    for (const int h : problem_.holders_of_rank[rank])
      held += (state.counts[3 * h] - state.counts[3 * h + 2]) * problem_.holders[h].weight;
    return held;
  }

  void Append(const State& from, int h, Kind kind, Level& next) {
    const Holder& holder = problem_.holders[h];
    double start = from.clocks[holder.rank];
    int used = -1;
    if (kind == Kind::kForward) used = holder.first_item + from.counts[3 * h];
    if (kind == Kind::kInputGrad || kind == Kind::kBackward)
      used = problem_.num_items + holder.first_item + from.counts[3 * h + 1];
    if (used >= 0) {
      if (from.arrivals[used] == kUnknown) return;
      start = std::max(start, from.arrivals[used]);
    }
    State state = from;
    if (used >= 0) state.arrivals[used] = 0;
    double end = start;
    switch (kind) {
      case Kind::kForward:
        end += holder.forward;
        if (holder.next >= 0) {
          const Holder& to = problem_.holders[holder.next];
          state.arrivals[to.first_item + from.counts[3 * h]] = end + Length(to.activation);
        }
        ++state.counts[3 * h];
        break;
      case Kind::kWeightGrad:
        end += holder.weight_grad;
        ++state.counts[3 * h + 2];
        break;
      default:
        end += kind == Kind::kBackward ? holder.backward : holder.input_grad;
        if (holder.previous >= 0) {
          const Holder& to = problem_.holders[holder.previous];
          state.arrivals[problem_.num_items + to.first_item + from.counts[3 * h + 1]] =
              end + Length(holder.gradient);
        }
        ++state.counts[3 * h + 1];
        if (kind == Kind::kBackward) ++state.counts[3 * h + 2];
    }
    state.clocks[holder.rank] = end;
    const double bound = BoundOf(state);
    if (bound >= best_ * (1 - 1e-12)) return;
    const Step step{static_cast<std::int16_t>(h), kind};
    if (IsComplete(state)) {
      best_ = bound;
      best_trace_ = static_cast<std::int32_t>(traces_.size());
      traces_.push_back({from.trace, step});
      return;
    }
    std::vector<State>& others = next[state.counts];
    for (const State& other : others) {
      if (NoLater(other, state)) return;
    }
    std::erase_if(others, [&](const State& other) { return NoLater(state, other); });
    state.trace = static_cast<std::int32_t>(traces_.size());
    traces_.push_back({from.trace, step});
    others.push_back(std::move(state));
  }

  static bool NoLater(const State& a, const State& b) {
    return std::equal(a.clocks.begin(), a.clocks.end(), b.clocks.begin(), std::less_equal<>()) &&
           std::equal(a.arrivals.begin(), a.arrivals.end(), b.arrivals.begin(),
                      std::less_equal<>());
  }

  bool IsComplete(const State& state) const {
    for (std::size_t h = 0; h < problem_.holders.size(); ++h) {
      if (state.counts[3 * h + 2] < problem_.holders[h].count) return false;
    }
    return true;
  }

  // A time before which no completion of the state ends.
  double BoundOf(const State& state) const {
    double bound = 0;
    for (int rank = 0; rank < problem_.num_ranks; ++rank) {
      double work = state.clocks[rank];
      for (const int h : problem_.holders_of_rank[rank]) {
        const Holder& holder = problem_.holders[h];
        const int forwards = state.counts[3 * h], gradients = state.counts[3 * h + 1];
        work += (holder.count - forwards) * holder.forward +
                (holder.count - gradients) * ShortestBackward(holder) +
                (gradients - state.counts[3 * h + 2]) * holder.weight_grad;
        if (forwards < holder.count) {
          bound = std::max(
              bound, std::max(state.clocks[rank], state.arrivals[holder.first_item + forwards]) +
                         (holder.count - forwards - 1) * holder.forward + from_forward_[h]);
        }
        if (gradients < holder.count) {
          const double arrival = state.arrivals[problem_.num_items + holder.first_item + gradients];
          bound = std::max(bound, std::max(state.clocks[rank], arrival) +
                                      (holder.count - gradients - 1) * ShortestGradient(holder) +
                                      from_gradient_[h]);
        }
      }
      bound = std::max(bound, work);
    }
    return bound;
  }

  Exact Result(bool proved) const {
    Exact exact{.proved = proved, .makespan = best_, .num_states = num_states_};
    if (best_trace_ < 0) return exact;
    exact.rows.resize(problem_.num_ranks);
    for (std::int32_t t = best_trace_; t >= 0; t = traces_[t].before) {
      exact.rows[problem_.holders[traces_[t].step.holder].rank].push_back(traces_[t].step);
    }
    for (Row& row : exact.rows) std::reverse(row.begin(), row.end());
    return exact;
  }

  const Problem& problem_;
  const std::int64_t max_states_;
  double best_;
  std::int32_t best_trace_ = -1;
  std::int64_t num_states_ = 0;
  std::vector<double> from_forward_, from_gradient_;  // shortest time from its start to the end
  std::vector<Trace> traces_;
};

}  // namespace

Exact SolveExactly(const Problem& problem, double known, std::int64_t max_states) {
  return Solver(problem, known, max_states).Run();
}

}  // namespace takt::search
