// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

namespace takt::inference {

struct SamplingOptions {
  double temperature = 0;  // 0: the token of the largest logit
  // Only the most probable tokens are drawn from, as many as together have at least this share
  // (nucleus sampling, Holtzman et al. 2020). 1: all.
  double top_p = 1;
  std::uint64_t seed = 0;
};

// Chooses tokens. The same options and logits give the same tokens again.
class Sampler {
 public:
  // Precondition: temperature >= 0 and 0 < top_p <= 1.
  explicit Sampler(const SamplingOptions& options) : options_(options), random_(options.seed) {}

  // Returns the next token. Of equal logits the lower id comes first.
  // Errors: kDataLoss: a logit is not a finite number.
  absl::StatusOr<std::int32_t> Next(std::span<const float> logits);

 private:
  std::int32_t Draw(std::span<const float> logits, float largest);
  // Keeps the most probable ids, of which the weights together are at least this. Returns their
  // sum.
  double KeepMostProbable(double enough);
  // Returns a number that is uniform in [0, 1).
  double Uniform() { return static_cast<double>(random_() >> 11) * 0x1.0p-53; }

  const SamplingOptions options_;
  std::mt19937_64 random_;
  std::vector<std::int32_t> ids_;
  std::vector<double> weights_;  // by id
};

}  // namespace takt::inference
