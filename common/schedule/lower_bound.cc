// SPDX-License-Identifier: Apache-2.0
#include "common/schedule/lower_bound.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/schedule/holders.h"

namespace takt::schedule {
namespace {

absl::Status BadSize(std::string field, int value, std::string rule) {
  return InvalidField({.field = std::move(field),
                       .value = absl::StrCat(value),
                       .rule = std::move(rule),
                       .fix = "correct it"});
}

absl::Status CheckInputs(const BoundInputs& inputs) {
  if (inputs.num_ranks < 1) return BadSize("ranks", inputs.num_ranks, "must be at least 1");
  if (inputs.num_microbatches < 1) {
    return BadSize("microbatches", inputs.num_microbatches, "must be at least 1");
  }
  if (inputs.num_stages < 1 || inputs.num_stages % inputs.num_ranks != 0) {
    return BadSize("stages", inputs.num_stages, "must be a multiple of the number of ranks");
  }
  if (inputs.placement == Placement::kV && inputs.num_stages != 2 * inputs.num_ranks) {
    return BadSize("stages", inputs.num_stages, "the v placement has two a rank");
  }
  if (inputs.placement == Placement::kBidirectional && inputs.num_stages != inputs.num_ranks) {
    return BadSize("stages", inputs.num_stages, "bidirectional has as many as ranks");
  }
  if (std::int64_t{inputs.num_stages} * inputs.num_microbatches > kMaxActions) {
    return BadSize("microbatches", inputs.num_microbatches,
                   absl::StrCat("stages x microbatches must be at most ", kMaxActions));
  }
  const std::size_t limits = inputs.max_in_flight.size();
  if (limits > 1 && limits != static_cast<std::size_t>(inputs.num_ranks)) {
    return BadSize("memory", static_cast<int>(limits), "one limit, or one for each rank");
  }
  for (const int limit : inputs.max_in_flight) {
    if (limit < 1) return BadSize("memory", limit, "must be at least 1");
  }
  const std::size_t sizes = inputs.message_bytes.size();
  if (sizes != 0 && sizes != static_cast<std::size_t>(inputs.num_stages)) {
    return BadSize("message_bytes", static_cast<int>(sizes), "one for each stage");
  }
  return cost::CheckCosts(inputs.costs, inputs.num_stages);
}

// The times of one holder. A backward may run split or whole, whichever is shorter. `backward` is
// the shorter time of both ways, `gradient` the shorter time until the result is there.
struct Times {
  double forward = 0, gradient = 0, backward = 0;
  // What the forward adds to the time of a backward, where a pair takes less than both.
  double in_pair = std::numeric_limits<double>::infinity();
  double message = 0;       // forward, from the previous holder
  double grad_message = 0;  // backward, to the previous holder
};

// Returns how many of the values a rank may hold; `limit` 0: all.
double SumOfLargest(std::vector<double> values, int limit) {
  const std::size_t count =
      limit == 0 ? values.size() : std::min(values.size(), static_cast<std::size_t>(limit));
  std::partial_sort(values.begin(), values.begin() + count, values.end(), std::greater<>());
  return std::accumulate(values.begin(), values.begin() + count, 0.0);
}

class Terms {
 public:
  Terms(const BoundInputs& inputs, const std::vector<Holder>& holders, std::vector<Times> times)
      : inputs_(inputs), holders_(holders), times_(std::move(times)) {
    FollowChains();
  }

  double Largest(bool with_memory) const {
    double largest = 0;
    for (std::size_t h = 0; h < holders_.size(); ++h) {
      if (holders_[h].next < 0 && holders_[h].num_microbatches > 0)
        largest =
            std::max(largest, times_[h].forward + arrival_[h] + times_[h].gradient + tail_[h]);
    }
    for (int rank = 0; rank < inputs_.num_ranks; ++rank)
      largest = std::max(largest, OfRank(rank, with_memory ? LimitOf(rank) : 0));
    return largest;
  }

  double MeanWork() const {
    double work = 0;
    for (int rank = 0; rank < inputs_.num_ranks; ++rank) work += Work(rank);
    return work / inputs_.num_ranks;
  }

 private:
  // Finds for each holder when its first F can start, when its first gradient can be there, and how
  // long the step goes on after its I, each at least.
  void FollowChains() {
    const int count = static_cast<int>(holders_.size());
    arrival_.assign(count, 0);
    first_gradient_.assign(count, 0);
    tail_.assign(count, 0);
    for (int h = 0; h < count; ++h) {
      const int previous = holders_[h].previous;
      if (previous >= 0) {
        arrival_[h] = arrival_[previous] + times_[previous].forward + times_[h].message;
        tail_[h] = times_[h].grad_message + times_[previous].gradient + tail_[previous];
      } else {
        tail_[h] = times_[h].backward - times_[h].gradient;
      }
    }
    for (int h = count - 1; h >= 0; --h) {
      const int next = holders_[h].next;
      first_gradient_[h] =
          next < 0 ? arrival_[h] + times_[h].forward
                   : first_gradient_[next] + times_[next].gradient + times_[next].grad_message;
    }
  }

  double Work(int rank) const {
    double work = 0;
    for (std::size_t h = 0; h < holders_.size(); ++h) {
      if (holders_[h].rank != rank) continue;
      const double forward = std::min(times_[h].forward, times_[h].in_pair);
      work += holders_[h].num_microbatches * (forward + times_[h].backward);
    }
    return work;
  }

  int LimitOf(int rank) const {
    if (inputs_.max_in_flight.empty()) return 0;
    return inputs_.max_in_flight.size() == 1 ? inputs_.max_in_flight[0]
                                             : inputs_.max_in_flight[rank];
  }

  double OfRank(int rank, int limit) const {
    const double infinity = std::numeric_limits<double>::infinity();
    double arrival = infinity, first_gradient = infinity, tail = infinity, lifetimes = 0;
    std::vector<double> forwards, weight_grads;
    for (std::size_t h = 0; h < holders_.size(); ++h) {
      const Holder& holder = holders_[h];
      if (holder.rank != rank || holder.num_microbatches == 0) continue;
      const Times& times = times_[h];
      arrival = std::min(arrival, arrival_[h]);
      first_gradient = std::min(first_gradient, first_gradient_[h]);
      tail = std::min(tail, tail_[h]);
      lifetimes += holder.num_microbatches * (first_gradient_[h] - arrival_[h] + times.backward);
      const int kept =
          limit == 0 ? holder.num_microbatches : std::min(limit, holder.num_microbatches);
      forwards.insert(forwards.end(), kept, times.forward);
      weight_grads.insert(weight_grads.end(), kept, times.backward - times.gradient);
    }
    if (arrival == infinity) return 0;
    const double work = Work(rank);
    double bound = arrival + work;
    bound = std::max(bound, first_gradient + work - SumOfLargest(forwards, limit));
    bound = std::max(bound, arrival + work - SumOfLargest(weight_grads, limit) + tail);
    if (limit > 0) bound = std::max(bound, lifetimes / limit);
    return bound;
  }

  const BoundInputs& inputs_;
  const std::vector<Holder>& holders_;
  const std::vector<Times> times_;
  std::vector<double> arrival_, first_gradient_, tail_;
};

// Takes into account that an F and a B of one rank may run as a pair, in less time.
void PairUp(const cost::Costs& costs, const std::vector<Holder>& holders,
            std::vector<Times>& times) {
  std::map<int, std::vector<std::size_t>> of_rank;
  for (std::size_t h = 0; h < holders.size(); ++h) of_rank[holders[h].rank].push_back(h);
  for (const auto& [rank, held] : of_rank) {
    for (const std::size_t forward : held) {
      for (const std::size_t backward : held) {
        const double pair = costs.O(holders[forward].stage, holders[backward].stage);
        Times& of = times[forward];
        of.in_pair = std::min(of.in_pair, std::max(0.0, pair - times[backward].backward));
        of.forward = std::min(of.forward, pair);
        times[backward].gradient = std::min(times[backward].gradient, pair);
      }
    }
  }
}

std::vector<Times> TimesOf(const BoundInputs& inputs, const std::vector<Holder>& holders,
                           bool with_messages) {
  const cost::Costs& costs = inputs.costs;
  const auto message = [&](int from_rank, int to_rank, int boundary) {
    if (from_rank == to_rank || !with_messages) return 0.0;
    const cost::LinkCost& link = costs.Link(PpRank(from_rank), PpRank(to_rank));
    const auto bytes = inputs.message_bytes.empty() ? 0 : inputs.message_bytes[boundary];
    return link.latency + link.seconds_per_byte * static_cast<double>(bytes);
  };
  std::vector<Times> times;
  for (const Holder& holder : holders) {
    const StageId stage = holder.stage;
    Times& of = times.emplace_back();
    of.forward = costs.F(stage);
    of.gradient = std::min(costs.I(stage), costs.B(stage));
    of.backward = std::min(costs.I(stage) + costs.W(stage), costs.B(stage));
    if (holder.previous < 0) continue;
    const int from = holders[holder.previous].rank, boundary = stage.value() - 1;
    of.message = message(from, holder.rank, boundary);
    of.grad_message = message(holder.rank, from, boundary);
  }
  if (!costs.PairsAreSums()) PairUp(costs, holders, times);
  return times;
}

std::vector<Times> Levelled(std::vector<Times> times) {
  Times mean{.in_pair = 0};
  for (const Times& of : times) {
    mean.forward += of.forward / times.size();
    mean.gradient += of.gradient / times.size();
    mean.backward += of.backward / times.size();
    mean.in_pair += of.in_pair / times.size();
  }
  std::fill(times.begin(), times.end(), mean);
  return times;
}

}  // namespace

std::string_view BindingName(Binding binding) {
  constexpr std::string_view kNames[] = {"nothing", "fill", "imbalance", "communication", "memory"};
  return kNames[static_cast<int>(binding)];
}

absl::StatusOr<Bound> LowerBound(const BoundInputs& inputs) {
  RETURN_IF_ERROR(CheckInputs(inputs));
  const std::vector<Holder> holders =
      HoldersOf(inputs.placement, inputs.num_ranks, inputs.num_stages, inputs.num_microbatches);
  const Terms silent(inputs, holders, TimesOf(inputs, holders, false));
  const Terms levelled(inputs, holders, Levelled(TimesOf(inputs, holders, false)));
  const Terms real(inputs, holders, TimesOf(inputs, holders, true));
  Bound bound{.work = silent.MeanWork()};
  // Each part is what its cause adds. A cause that only helps adds nothing.
  double reached = bound.work;
  const auto add = [&reached](double& part, double to) {
    part = std::max(0.0, to - reached);
    reached += part;
  };
  add(bound.fill, std::min(levelled.Largest(false), real.Largest(true)));
  add(bound.imbalance, silent.Largest(false));
  add(bound.communication, real.Largest(false));
  add(bound.memory, real.Largest(true));
  bound.makespan = real.Largest(true);
  const std::pair<double, Binding> causes[] = {{bound.fill, Binding::kFill},
                                               {bound.imbalance, Binding::kImbalance},
                                               {bound.communication, Binding::kCommunication},
                                               {bound.memory, Binding::kMemory}};
  double largest = 0;
  for (const auto& [part, cause] : causes) {
    if (part > largest * (1 + 1e-12)) {
      largest = part;
      bound.binds = cause;
    }
  }
  return bound;
}

}  // namespace takt::schedule
