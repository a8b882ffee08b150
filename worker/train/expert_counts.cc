// SPDX-License-Identifier: Apache-2.0
#include "worker/train/expert_counts.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include "common/base/status.h"

namespace takt::train {
namespace {

// Precondition: some count is above 0.
ExpertLoad LoadOf(std::span<const std::int64_t> counts) {
  const auto sum = static_cast<double>(std::accumulate(counts.begin(), counts.end(), 0LL));
  const auto experts = static_cast<double>(counts.size());
  double entropy = 0;
  for (const std::int64_t count : counts) {
    const double share = static_cast<double>(count) / sum;
    if (share > 0) entropy -= share * std::log(share);
  }
  const auto fullest = static_cast<double>(*std::ranges::max_element(counts));
  return {.max_over_mean = fullest * experts / sum,
          .entropy = counts.size() == 1 ? 1 : entropy / std::log(experts)};
}

}  // namespace

absl::StatusOr<ExpertCounts> ExpertCounts::Create(backend::Backend& backend,
                                                  const Options& options) {
  const std::int64_t count = kSteps * options.num_microbatches * options.blocks * options.experts;
  if (count == 0) return ExpertCounts(options, backend::Buffer());
  ASSIGN_OR_RETURN(backend::Buffer memory,
                   backend.AllocateHost(static_cast<std::size_t>(count) * sizeof(std::int32_t)));
  return ExpertCounts(options, std::move(memory));
}

std::int32_t* ExpertCounts::At(std::int64_t remainder, MicrobatchId microbatch) const {
  if (options_.experts == 0) return nullptr;
  return reinterpret_cast<std::int32_t*>(memory_.data()) +
         (remainder * options_.num_microbatches + microbatch.value()) * options_.blocks *
             options_.experts;
}

std::vector<ExpertLoad> ExpertCounts::Loads(StepId step) const {
  std::vector<ExpertLoad> loads;
  std::vector<std::int64_t> sums(static_cast<std::size_t>(options_.experts));
  for (int block = 0; block < (sums.empty() ? 0 : options_.blocks); ++block) {
    std::ranges::fill(sums, 0);
    std::int64_t wanted = 0;
    for (MicrobatchId m(0); m.value() < options_.num_microbatches; ++m) {
      const std::int32_t* const counts =
          At(step.value() % kSteps, m) + std::int64_t{block} * options_.experts;
      // A microbatch or a block that another rank computes has no counts here.
      bool computed = false;
      for (std::size_t e = 0; e < sums.size(); ++e) {
        sums[e] += counts[e];
        computed = computed || counts[e] > 0;
      }
      if (computed) wanted += options_.pairs;
    }
    if (wanted == 0) continue;
    ExpertLoad& load = loads.emplace_back(LoadOf(sums));
    load.block = block;
    load.dropped = wanted - std::accumulate(sums.begin(), sums.end(), 0LL);
  }
  return loads;
}

double ExpertCounts::Imbalance(StepId step) const {
  if (options_.ranks == 1 || options_.experts == 0) return 0;
  const int here = options_.experts / options_.ranks;
  double sum = 0;
  std::int64_t computed = 0;
  for (MicrobatchId m(0); m.value() < options_.num_microbatches; ++m) {
    for (int block = 0; block < options_.blocks; ++block) {
      const std::int32_t* const counts =
          At(step.value() % kSteps, m) + std::int64_t{block} * options_.experts;
      std::int64_t all = 0, most = 0;
      for (int rank = 0; rank < options_.ranks; ++rank) {
        const std::int32_t* const of_rank = counts + std::int64_t{rank} * here;
        const std::int64_t rows = std::accumulate(of_rank, of_rank + here, std::int64_t{0});
        all += rows;
        most = std::max(most, rows);
      }
      if (all == 0) continue;
      sum += static_cast<double>(most * options_.ranks) / static_cast<double>(all);
      ++computed;
    }
  }
  return computed == 0 ? 0 : sum / static_cast<double>(computed);
}

}  // namespace takt::train
