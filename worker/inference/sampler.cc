// SPDX-License-Identifier: Apache-2.0
#include "worker/inference/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace takt::inference {

absl::StatusOr<std::int32_t> Sampler::Next(std::span<const float> logits) {
  std::size_t largest = 0;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    if (!std::isfinite(logits[id])) {
      return absl::DataLossError(absl::StrCat("the logit of token ", id, " is ", logits[id],
                                              ": the weights are damaged, or training diverged"));
    }
    if (logits[id] > logits[largest]) largest = id;
  }
  if (options_.temperature == 0) return static_cast<std::int32_t>(largest);
  return Draw(logits, logits[largest]);
}

std::int32_t Sampler::Draw(std::span<const float> logits, float largest) {
  weights_.resize(logits.size());
  std::transform(logits.begin(), logits.end(), weights_.begin(), [&](float logit) {
    return std::exp((static_cast<double>(logit) - largest) / options_.temperature);
  });
  ids_.resize(logits.size());
  std::iota(ids_.begin(), ids_.end(), 0);
  double sum = std::accumulate(weights_.begin(), weights_.end(), 0.0);
  if (options_.top_p < 1) sum = KeepMostProbable(options_.top_p * sum);
  double rest = Uniform() * sum;
  for (const std::int32_t id : ids_) {
    rest -= weights_[static_cast<std::size_t>(id)];
    if (rest < 0) return id;
  }
  return ids_.back();  // by rounding
}

double Sampler::KeepMostProbable(double enough) {
  constexpr std::size_t kFirst = 64;
  const auto is_before = [this](std::int32_t a, std::int32_t b) {
    const double weight_a = weights_[static_cast<std::size_t>(a)];
    const double weight_b = weights_[static_cast<std::size_t>(b)];
    return weight_a > weight_b || (weight_a == weight_b && a < b);
  };
  // Mostly a few ids are enough, so more of them are sorted only when these are not.
  double sum = 0;
  std::size_t kept = 0;
  for (std::size_t sorted = 0; kept < ids_.size() && (kept == 0 || sum < enough); ++kept) {
    if (kept == sorted) {
      sorted = std::min(ids_.size(), std::max(kFirst, 4 * sorted));
      const auto begin = ids_.begin();
      std::partial_sort(begin + static_cast<std::ptrdiff_t>(kept),
                        begin + static_cast<std::ptrdiff_t>(sorted), ids_.end(), is_before);
    }
    sum += weights_[static_cast<std::size_t>(ids_[kept])];
  }
  ids_.resize(kept);
  return sum;
}

}  // namespace takt::inference
