// SPDX-License-Identifier: Apache-2.0
#include "common/search/evaluator.h"

#include <algorithm>

namespace takt::search {

Evaluator::Evaluator(const Problem& problem)
    : problem_(problem),
      holders_(problem.holders.size()),
      ranks_(problem.num_ranks),
      arrival_(problem.num_items),
      gradient_arrival_(problem.num_items),
      lane_free_(problem.num_lanes),
      forward_position_(problem.num_items),
      gradient_position_(problem.num_items),
      pending_(problem.num_ranks),
      item_(problem.num_ranks),
      late_(problem.num_ranks),
      starts_(problem.num_ranks) {
  ready_.reserve(problem.num_ranks);
  for (int rank = 0; rank < problem.num_ranks; ++rank) {
    int items = 0;
    for (const int h : problem.holders_of_rank[rank]) items += problem.holders[h].count;
    pending_[rank].resize(items);
    item_[rank].resize(3 * items);
    late_[rank].resize(3 * items);
    starts_[rank].resize(3 * items);
  }
  path_.reserve(problem.num_actions());
}

double Evaluator::Time(const Rows& rows) { return Run<false>(rows, {}, nullptr); }

double Evaluator::Fill(const Rows& rows, const FillRule& rule, Rows* completed) {
  if (completed != nullptr) {
    completed->resize(rows.size());
    for (Row& row : *completed) row.clear();
  }
  return Run<true>(rows, rule, completed);
}

template <bool kFill>
double Evaluator::Run(const Rows& rows, const FillRule& rule, Rows* completed) {
  for (std::size_t h = 0; h < holders_.size(); ++h) {
    const Holder& holder = problem_.holders[h];
    holders_[h] = {};
    // The input of the first stage is there from the start, and the last stage's gradient comes
    // from its own F.
    if (holder.previous < 0) {
      holders_[h].arrived = holder.count;
      std::fill_n(arrival_.begin() + holder.first_item, holder.count, 0.0);
    }
    if (holder.next < 0) {
      holders_[h].gradients_arrived = holder.count;
      std::fill_n(gradient_arrival_.begin() + holder.first_item, holder.count, 0.0);
    }
  }
  std::fill(lane_free_.begin(), lane_free_.end(), 0.0);
  ready_.clear();
  for (int rank = problem_.num_ranks - 1; rank >= 0; --rank) {
    ranks_[rank] = {};
    ready_.push_back(rank);
  }
  timed_ = &rows;
  int num_done = 0;
  double makespan = 0;
  while (!ready_.empty()) {
    const int rank = ready_.back();
    ready_.pop_back();
    if (!Advance<kFill>(rank, rows[rank], rule,
                        completed == nullptr ? nullptr : &(*completed)[rank])) {
      return kNever;
    }
    if (ranks_[rank].position == static_cast<int>(rows[rank].size())) {
      ++num_done;
      makespan = std::max({makespan, ranks_[rank].clock, ranks_[rank].reduced});
    }
  }
  if (num_done < problem_.num_ranks) return kNever;
  return problem_.tied_reduction > 0 ? std::max(makespan, EndOfTiedReduction()) : makespan;
}

void Evaluator::FinishWeightGrad(int h) {
  const Holder& holder = problem_.holders[h];
  HolderState& state = holders_[h];
  if (++state.weight_grads < holder.count) return;
  RankState& rank = ranks_[holder.rank];
  state.finished = rank.clock;
  if (holder.reduction > 0) rank.reduced = std::max(rank.reduced, rank.clock) + holder.reduction;
}

double Evaluator::EndOfTiedReduction() const {
  double ready = 0;
  for (std::size_t h = 0; h < holders_.size(); ++h) {
    const Holder& holder = problem_.holders[h];
    if (holder.previous >= 0 && holder.next >= 0) continue;
    ready = std::max({ready, holders_[h].finished, ranks_[holder.rank].reduced});
  }
  return ready + problem_.tied_reduction;
}

double Evaluator::Send(const Way& way, double ready) {
  if (way.lane < 0) return ready + way.latency;
  double& free = lane_free_[way.lane];
  free = std::max(free, ready) + way.occupies;
  return free + way.latency;
}

void Evaluator::Arrive(int holder, bool gradient, double when) {
  const Holder& to = problem_.holders[holder];
  HolderState& state = holders_[holder];
  if (gradient) {
    gradient_arrival_[to.first_item + state.gradients_arrived++] = when;
  } else {
    arrival_[to.first_item + state.arrived++] = when;
  }
  int& waits_for = ranks_[to.rank].waits_for;
  if (waits_for == 2 * holder + (gradient ? 1 : 0)) {
    waits_for = -1;
    ready_.push_back(to.rank);
  }
}

void Evaluator::RunPending(int rank, Row* completed) {
  RankState& state = ranks_[rank];
  const int h = pending_[rank][state.pending_begin++];
  state.clock += problem_.holders[h].weight_grad;
  state.held -= problem_.holders[h].weight;
  FinishWeightGrad(h);
  if (completed != nullptr) {
    completed->push_back({static_cast<std::int16_t>(h), Kind::kWeightGrad});
  }
}

// Runs the pending W that must or may come before an action with `input`: an F first needs memory,
// and W fill the wait for the input. Returns false if no W can make room.
inline bool Evaluator::RunPendingBefore(int rank, const Step& step, double input,
                                        const FillRule& rule, Row* completed) {
  RankState& state = ranks_[rank];
  const std::int64_t weight = problem_.holders[step.holder].weight;
  while (step.kind == Kind::kForward && state.held + weight > problem_.limit[rank]) {
    if (state.pending_begin == state.pending_end) return false;
    RunPending(rank, completed);
  }
  while (state.pending_begin < state.pending_end && state.clock < input) {
    const double length = problem_.holders[pending_[rank][state.pending_begin]].weight_grad;
    if (state.clock + length > input + rule.overrun * length) break;
    RunPending(rank, completed);
  }
  return true;
}

// Runs an F, I or B of `item` from `start` on. Returns false if the row can never complete.
template <bool kFill>
inline bool Evaluator::RunStep(int rank, const Step& step, int item, double start) {
  RankState& state = ranks_[rank];
  const Holder& holder = problem_.holders[step.holder];
  HolderState& done = holders_[step.holder];
  if (step.kind == Kind::kForward) {
    state.clock = start + holder.forward;
    forward_position_[item] = state.position;
    ++done.forwards;
    state.held += holder.weight;
    if (holder.next >= 0) {
      Arrive(holder.next, false, Send(problem_.holders[holder.next].activation, state.clock));
    }
    return true;
  }
  if (step.kind == Kind::kBackward) {
    if (done.weight_grads != done.gradients) return false;
    state.clock = start + holder.backward;
    FinishWeightGrad(step.holder);
    state.held -= holder.weight;
  } else {
    state.clock = start + holder.input_grad;
    if constexpr (kFill) pending_[rank][state.pending_end++] = step.holder;
  }
  gradient_position_[item] = state.position;
  ++done.gradients;
  if (holder.previous >= 0) Arrive(holder.previous, true, Send(holder.gradient, state.clock));
  return true;
}

// Runs as much of the row as it can. Returns false if the row can never complete.
template <bool kFill>
bool Evaluator::Advance(int rank, const Row& row, const FillRule& rule, Row* completed) {
  RankState& state = ranks_[rank];
  const int keep = rule.keep == FillRule::kKeepAll ? rule.keep : rule.keep * rank;
  const int size = static_cast<int>(row.size());
  for (; state.position < size; ++state.position) {
    const Step step = row[state.position];
    const Holder& holder = problem_.holders[step.holder];
    const HolderState& done = holders_[step.holder];
    if (step.kind == Kind::kWeightGrad) {
      if (done.weight_grads >= done.gradients) return false;
      state.clock += holder.weight_grad;
      FinishWeightGrad(step.holder);
      late_[rank][state.position] = false;
      continue;
    }
    const bool forward = step.kind == Kind::kForward;
    const int k = forward ? done.forwards : done.gradients;
    if (k >= (forward ? done.arrived : done.gradients_arrived)) {
      state.waits_for = 2 * step.holder + (forward ? 0 : 1);
      return true;
    }
    if (!forward && k >= done.forwards) return false;
    const int item = holder.first_item + k;
    const double input = forward ? arrival_[item] : gradient_arrival_[item];
    if constexpr (kFill) {
      if (!RunPendingBefore(rank, step, input, rule, completed)) return false;
    }
    const bool late = input > state.clock;
    late_[rank][state.position] = late;
    item_[rank][state.position] = item;
    const double start = late ? input : state.clock;
    starts_[rank][state.position] = start;
    if (!RunStep<kFill>(rank, step, item, start)) return false;
    if constexpr (kFill) {
      if (completed != nullptr) completed->push_back(step);
      if (!forward && state.pending_end - state.pending_begin > keep) RunPending(rank, completed);
    }
  }
  if constexpr (kFill) {
    while (state.pending_begin < state.pending_end) RunPending(rank, completed);
  }
  return true;
}

const std::vector<Evaluator::Place>& Evaluator::CriticalPath() {
  path_.clear();
  int rank = 0;
  for (int r = 1; r < problem_.num_ranks; ++r) {
    if (ranks_[r].clock > ranks_[rank].clock) rank = r;
  }
  int position = static_cast<int>((*timed_)[rank].size()) - 1;
  while (position >= 0) {
    path_.push_back({rank, position});
    if (!late_[rank][position]) {
      --position;
      continue;
    }
    const Step step = (*timed_)[rank][position];
    const Holder& holder = problem_.holders[step.holder];
    const bool forward = step.kind == Kind::kForward;
    const int from = forward ? holder.previous : holder.next;
    const int item = item_[rank][position] - holder.first_item + problem_.holders[from].first_item;
    rank = problem_.holders[from].rank;
    position = forward ? forward_position_[item] : gradient_position_[item];
  }
  return path_;
}

}  // namespace takt::search
