// SPDX-License-Identifier: Apache-2.0
// The times of each action and each message of a step, measured or modelled. Generators that look
// at time, the simulator and the planner read the same values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/id.h"

namespace takt::cost {

// The cost of a message between one ordered pair of ranks.
struct LinkCost {
  double latency = 0;           // each message takes it; it does not occupy the link
  double seconds_per_byte = 0;  // it occupies the link's lane

  bool operator==(const LinkCost&) const = default;
};

// Describes the ranks that meet inside a pass: their number, and the worst latency and rate of
// their links.
struct GroupCost {
  int size = 1;
  LinkCost link;

  bool operator==(const GroupCost&) const = default;
};

// The times are in seconds, or in any unit common to all.
struct Costs {
  // F, I, W, B by stage, without the meetings inside. A vector of one entry serves all stages.
  std::vector<double> forward{1}, input_grad{1}, weight_grad{1}, backward{2};
  // What of forward and of backward are meetings, which the other half of a pair hides.
  std::vector<double> forward_meetings{0}, backward_meetings{0};
  // The time in which both halves of a pair compute, as a multiple of the two by themselves.
  double pair_ratio = 1;
  // O(F,B) where it is given, by the stage of its F; empty: nowhere.
  std::vector<std::optional<double>> overlap;
  LinkCost link;                                        // for each pair that `links` does not name
  std::map<std::pair<PpRank, PpRank>, LinkCost> links;  // by (from, to)
  // The time of all REDUCE_GRAD of a stage together, by stage as above. Each layer takes an equal
  // part. One more entry than there are stages may follow: the time for the rows of a spread
  // vocabulary, of all ranks together. Without it these rows take no time.
  std::vector<double> reduction{0};
  // How many terms each rank adds to these sums. `reduction` is the time of sums with one term a
  // rank.
  int terms = 1;
  // The ranks of these sums are a chain. It passes all terms of a rank as one. A scatter alone
  // passes as much as a whole sum, because the last rank is the first to have all sums.
  bool chained_sums = false;
  double tied_reduction = 0;  // REDUCE_TIED
  // OPT, after NORM_EXCHANGE, which is a barrier; by pp rank. One entry serves all ranks.
  std::vector<double> optimizer{0};
  // The parts of it that a rank's rows of a spread vocabulary take: those of the embedding, which
  // SPECULATE foresees by themselves, and those of the head, which it does not foresee. A tied
  // table is the embedding's. By pp rank, as above.
  std::vector<double> embedding_update{0}, head_update{0};
  // S and T of a rank's blocks of the vocabulary, by pp rank. One entry serves all ranks.
  std::vector<double> vocabulary_forward{0}, vocabulary_backward{0};
  // The groups that meet inside passes, by pp rank. One entry serves all ranks.
  std::vector<GroupCost> tensor{GroupCost{}}, context{GroupCost{}};
  // The halves of a pair run side by side where ranks meet in them, so that one computes while the
  // other one meets. On GPUs one half follows the other.
  bool halves_run_beside = true;

  bool operator==(const Costs&) const = default;

  double F(StageId stage) const { return Of(forward, stage); }
  double I(StageId stage) const { return Of(input_grad, stage); }
  double W(StageId stage) const { return Of(weight_grad, stage); }
  double B(StageId stage) const { return Of(backward, stage); }
  // A sum is a scatter, of all terms, and a gather of the sums.
  double ReduceScatter(StageId stage) const {
    return chained_sums ? Of(reduction, stage) : terms * Of(reduction, stage) / 2;
  }
  double Gather(StageId stage) const { return Of(reduction, stage) / 2; }
  double Reduction(StageId stage) const {
    return chained_sums ? Of(reduction, stage) : ReduceScatter(stage) + Gather(stage);
  }
  double Optimizer(PpRank pp_rank) const { return OfRank(optimizer, pp_rank); }
  double EmbeddingUpdate(PpRank pp_rank) const { return OfRank(embedding_update, pp_rank); }
  // Returns the time in which SPECULATE foresees all stages.
  double Foresight(PpRank pp_rank) const {
    return std::max(0.0,
                    Optimizer(pp_rank) - EmbeddingUpdate(pp_rank) - OfRank(head_update, pp_rank));
  }
  double S(PpRank pp_rank) const { return OfRank(vocabulary_forward, pp_rank); }
  double T(PpRank pp_rank) const { return OfRank(vocabulary_backward, pp_rank); }
  const GroupCost& Tensor(PpRank pp_rank) const { return OfRank(tensor, pp_rank); }
  const GroupCost& Context(PpRank pp_rank) const { return OfRank(context, pp_rank); }
  // Returns the cost of the pair that runs F of `forward_stage` and B of `backward_stage` as one.
  double O(StageId forward_stage, StageId backward_stage) const {
    if (!overlap.empty()) {
      if (const std::optional<double> given = Of(overlap, forward_stage)) return *given;
    }
    const double forward_meeting = Of(forward_meetings, forward_stage);
    const double backward_meeting = Of(backward_meetings, backward_stage);
    const double computed =
        F(forward_stage) - forward_meeting + B(backward_stage) - backward_meeting;
    return std::max({pair_ratio * computed, F(forward_stage), B(backward_stage),
                     forward_meeting + backward_meeting});
  }
  // Returns whether each pair takes as long as its F and its B.
  bool PairsAreSums() const {
    const auto is_zero = [](double time) { return time == 0; };
    const auto is_given = [](const std::optional<double>& time) { return time.has_value(); };
    return pair_ratio == 1 && std::ranges::none_of(overlap, is_given) &&
           std::ranges::all_of(forward_meetings, is_zero) &&
           std::ranges::all_of(backward_meetings, is_zero);
  }
  const LinkCost& Link(PpRank from, PpRank to) const {
    if (links.empty()) return link;
    const auto found = links.find({from, to});
    return found == links.end() ? link : found->second;
  }

 private:
  template <class Time>
  static Time Of(const std::vector<Time>& by_stage, StageId stage) {
    return by_stage.size() == 1 ? by_stage[0] : by_stage[stage.value()];
  }
  template <class Cost>
  static const Cost& OfRank(const std::vector<Cost>& by_rank, PpRank pp_rank) {
    return by_rank.size() == 1 ? by_rank[0] : by_rank[pp_rank.value()];
  }
};

// Checks that costs are finite and not negative, and that there is one value or one for each stage.
// Errors: kInvalidArgument (FieldError "cost.F", ...).
absl::Status CheckCosts(const Costs& costs, int num_stages);

// Checks that costs by pp rank have one value, or one for each rank.
// Errors: kInvalidArgument (FieldError "cost.optimizer", ...).
absl::Status CheckCostsByRank(const Costs& costs, int num_ranks);

// Returns the largest latency and the largest seconds per byte of all links between ranks.
LinkCost SlowestLink(const Costs& costs, int num_ranks);

// Returns the cost of a meeting of all ranks, which passes `bytes` between them along a tree:
// latency times ceil(log2 P), and the bytes once. slowest: of their links.
double MeetingCost(const LinkCost& slowest, int num_ranks, std::int64_t bytes);

// Returns the cost of a meeting of a group inside a pass, in which each rank passes on `bytes` to
// the others, one after the other: a latency for each, and the bytes once.
double MeetingCost(const GroupCost& group, std::int64_t bytes);

}  // namespace takt::cost
