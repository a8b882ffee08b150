// SPDX-License-Identifier: Apache-2.0
#include "common/search/problem.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

namespace takt::search {

using schedule::Action;
using schedule::Schedule;

namespace {

class Lanes {
 public:
  explicit Lanes(const Request& request) : request_(request) {}

  // The way of a message over the boundary after `stage`.
  Way Between(int from, int to, int stage, bool gradient) {
    if (from == to) return {};
    const cost::LinkCost& link = request_.costs.Link(PpRank(from), PpRank(to));
    const auto bytes = request_.message_bytes.empty() ? 0 : request_.message_bytes[stage];
    Way way{.latency = link.latency,
            .occupies = link.seconds_per_byte * static_cast<double>(bytes)};
    if (way.occupies > 0) {
      way.lane = numbers_.try_emplace({from, to, gradient}, numbers_.size()).first->second;
    }
    return way;
  }

  int count() const { return static_cast<int>(numbers_.size()); }

 private:
  const Request& request_;
  std::map<std::tuple<int, int, bool>, int> numbers_;
};

std::int64_t LimitOf(const std::vector<int>& limits, int rank) {
  return limits.size() == 1 ? limits[0] : limits[rank];
}

}  // namespace

Problem MakeProblem(const Request& request, schedule::Placement placement, int num_chunks) {
  Problem problem{.placement = placement,
                  .num_ranks = request.num_ranks,
                  .num_stages = request.num_ranks * num_chunks,
                  .num_microbatches = request.num_microbatches};
  problem.chains = schedule::HoldersOf(placement, problem.num_ranks, problem.num_stages,
                                       problem.num_microbatches);
  problem.holders_of_rank.resize(problem.num_ranks);
  const bool by_bytes = !request.max_bytes.empty();
  Lanes lanes(request);
  for (const schedule::Holder& chain : problem.chains) {
    const StageId stage = chain.stage;
    Holder holder{.rank = chain.rank,
                  .count = chain.num_microbatches,
                  .previous = chain.previous,
                  .next = chain.next,
                  .first_item = problem.num_items,
                  .forward = request.costs.F(stage),
                  .input_grad = request.costs.I(stage),
                  .weight_grad = request.costs.W(stage),
                  .backward = request.costs.B(stage),
                  .reduction = request.shares ? request.costs.ReduceScatter(stage)
                                              : request.costs.Reduction(stage),
                  .weight = by_bytes ? request.stash_bytes[stage.value()] : 1};
    if (chain.previous >= 0) {
      const int from = problem.chains[chain.previous].rank;
      holder.activation = lanes.Between(from, chain.rank, stage.value() - 1, false);
      holder.gradient = lanes.Between(chain.rank, from, stage.value() - 1, true);
    }
    problem.num_items += holder.count;
    problem.holders_of_rank[chain.rank].push_back(static_cast<int>(problem.holders.size()));
    problem.holders.push_back(holder);
  }
  problem.num_lanes = lanes.count();
  problem.tied_reduction = request.costs.tied_reduction;
  for (int rank = 0; rank < problem.num_ranks; ++rank) {
    problem.limit.push_back(
        by_bytes ? (request.max_bytes.size() == 1 ? request.max_bytes[0] : request.max_bytes[rank])
        : request.max_in_flight.empty() ? std::numeric_limits<std::int64_t>::max() / 2
                                        : LimitOf(request.max_in_flight, rank));
  }
  return problem;
}

Schedule ToSchedule(const Problem& problem, const Rows& rows) {
  Schedule schedule{.name = "auto",
                    .num_stages = problem.num_stages,
                    .num_microbatches = problem.num_microbatches,
                    .placement = problem.placement};
  for (const Row& row : rows) {
    std::vector<Action>& actions = schedule.ranks.emplace_back();
    std::vector<std::array<int, 3>> done(problem.holders.size());
    for (const Step step : row) {
      const schedule::Holder& holder = problem.chains[step.holder];
      auto& [forwards, gradients, weight_grads] = done[step.holder];
      int& done_before = step.kind == Kind::kForward      ? forwards
                         : step.kind == Kind::kWeightGrad ? weight_grads
                                                          : gradients;
      actions.push_back(
          {holder.stage, step.kind, MicrobatchId(holder.first_microbatch + done_before++)});
      if (step.kind == Kind::kBackward) ++weight_grads;
    }
  }
  return schedule;
}

Rows FromSchedule(const Problem& problem, const Schedule& schedule) {
  // A microbatch goes up if its F of the first stage is not on the rank of the down copy.
  std::vector<bool> up(problem.num_microbatches, false);
  if (problem.placement == schedule::Placement::kBidirectional) {
    for (int rank = 1; rank < problem.num_ranks; ++rank) {
      for (const Action& action : schedule.ranks[rank]) {
        if (action.stage == StageId(0)) up[action.microbatch.value()] = true;
      }
    }
  }
  Rows rows;
  for (const std::vector<Action>& actions : schedule.ranks) {
    Row& row = rows.emplace_back();
    for (const Action& action : actions) {
      const int chain = up[action.microbatch.value()] ? problem.num_stages : 0;
      const auto holder = static_cast<std::int16_t>(chain + action.stage.value());
      const bool whole = action.kind == Kind::kBackward;
      row.push_back({holder, whole ? Kind::kInputGrad : action.kind});
      if (whole) row.push_back({holder, Kind::kWeightGrad});
    }
  }
  return rows;
}

bool Fits(const Problem& problem, const Rows& rows) {
  for (int rank = 0; rank < problem.num_ranks; ++rank) {
    std::int64_t held = 0;
    for (const Step step : rows[rank]) {
      const std::int64_t weight = problem.holders[step.holder].weight;
      if (step.kind == Kind::kForward) {
        held += weight;
        if (held > problem.limit[rank]) return false;
      } else if (step.kind != Kind::kInputGrad) {
        held -= weight;
      }
    }
  }
  return true;
}

}  // namespace takt::search
