// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/stragglers.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace takt::job {
namespace {

// Returns the median; of an even number of values, the lower one, so that one of two ranks can be
// slow beside the other.
double LowerMedian(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

std::string DescribeStraggler(const Straggler& straggler) {
  return absl::StrCat("computes ", absl::StrFormat("%.1f", straggler.slowdown),
                      " times as long as predicted, beside the other ranks, since step ",
                      straggler.since.value());
}

std::vector<double> PredictedCompute(const plan::Plan& plan) {
  if (plan.schedule.placement == schedule::Placement::kBidirectional) return {};
  std::vector<double> seconds(plan.mesh.pp_size);
  for (const mesh::Stage& stage : plan.partition) {
    seconds[stage.pp_rank.value()] +=
        plan.schedule.num_microbatches * (plan.costs.F(stage.id) + plan.costs.B(stage.id));
  }
  const bool known = std::ranges::all_of(seconds, [](double each) { return each > 0; });
  return known ? seconds : std::vector<double>();
}

StragglerWatch::StragglerWatch(mesh::Mesh mesh, std::vector<double> predicted,
                               StragglerOptions options)
    : options_(options),
      mesh_(mesh),
      predicted_(std::move(predicted)),
      slow_steps_(static_cast<std::size_t>(mesh.size())) {}

std::vector<double> StragglerWatch::SlowdownsOf(const std::vector<double>& busy) const {
  std::vector<double> slowdowns;
  for (std::size_t rank = 0; rank < busy.size(); ++rank) {
    const PpRank pp_rank = mesh_.PpRankOf(Rank(static_cast<int>(rank)));
    slowdowns.push_back(busy[rank] / predicted_[pp_rank.value()]);
  }
  const double usual = LowerMedian(slowdowns);
  if (!(usual > 0)) return {};
  std::vector<double> of_stage(predicted_.size());  // the usual one of its ranks, by pp rank
  const std::ptrdiff_t chains = mesh_.num_chains();
  for (std::size_t p = 0; p < of_stage.size(); ++p) {
    const auto first = slowdowns.begin() + static_cast<std::ptrdiff_t>(p) * chains;
    of_stage[p] = chains > 1 ? LowerMedian(std::vector<double>(first, first + chains)) : usual;
  }
  for (std::size_t rank = 0; rank < slowdowns.size(); ++rank) {
    const PpRank pp_rank = mesh_.PpRankOf(Rank(static_cast<int>(rank)));
    slowdowns[rank] /= std::max(usual, of_stage[pp_rank.value()]);
  }
  return slowdowns;
}

void StragglerWatch::Add(StepId step, const std::vector<double>& busy) {
  if (predicted_.empty() || busy.size() != slow_steps_.size()) return;
  const std::vector<double> slowdowns = SlowdownsOf(busy);
  if (slowdowns.empty()) return;
  for (std::size_t rank = 0; rank < slowdowns.size(); ++rank)
    slow_steps_[rank] = slowdowns[rank] >= options_.slowdown ? slow_steps_[rank] + 1 : 0;
  if (named_) {
    fast_steps_ = slow_steps_[named_->rank.value()] > 0 ? 0 : fast_steps_ + 1;
    if (fast_steps_ < options_.steps) return;
    named_.reset();
  }
  for (std::size_t rank = 0; rank < slowdowns.size(); ++rank) {
    if (slow_steps_[rank] < options_.steps) continue;
    if (named_ && named_->slowdown >= slowdowns[rank]) continue;
    named_ = Straggler{.rank = Rank(static_cast<int>(rank)),
                       .slowdown = slowdowns[rank],
                       .since = StepId(step.value() - slow_steps_[rank] + 1)};
  }
  fast_steps_ = 0;
}

}  // namespace takt::job
