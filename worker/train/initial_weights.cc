// SPDX-License-Identifier: Apache-2.0
#include "worker/train/initial_weights.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "common/base/status.h"

namespace takt::train {
namespace {

// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64 bits without visible structure.
std::uint64_t Mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// Number `counter` of the stream `key`, uniform in (0, 1): 53 bits, never 0, so that its logarithm is finite.
double Uniform(std::uint64_t key, std::uint64_t counter) {
  const std::uint64_t bits = Mix(key + (counter + 1) * 0x9e3779b97f4a7c15ULL);
  return (static_cast<double>(bits >> 11) + 0.5) * 0x1.0p-53;
}

void FillNormal(std::uint64_t key, double stddev, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); i += 2) {
    const double radius = stddev * std::sqrt(-2.0 * std::log(Uniform(key, i)));
    const double angle = 2.0 * std::numbers::pi * Uniform(key, i + 1);
    out[i] = static_cast<float>(radius * std::cos(angle));
    if (i + 1 < out.size()) out[i + 1] = static_cast<float>(radius * std::sin(angle));
  }
}

}  // namespace

void FillInitialWeights(const model::Parameter& parameter, std::uint64_t seed, std::span<float> out) {
  TAKT_CHECK(out.size() == static_cast<std::size_t>(parameter.elements()));
  switch (parameter.init) {
    case model::Init::kZeros:
      std::fill(out.begin(), out.end(), 0.0F);
      return;
    case model::Init::kOnes:
      std::fill(out.begin(), out.end(), 1.0F);
      return;
    case model::Init::kNormal:
      FillNormal(XXH3_64bits_withSeed(parameter.name.data(), parameter.name.size(), seed), parameter.stddev, out);
      return;
  }
}

}  // namespace takt::train
