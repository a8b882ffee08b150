// SPDX-License-Identifier: Apache-2.0
// Initial weights. Random ones depend on (seed, parameter name) alone, so that every partition starts from the same bits.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "common/model/model.h"

namespace takt::train {

// Fills `out` (all elements of `parameter`) with zeros, ones, or normal numbers of mean 0 and the parameter's stddev.
// Element i is a function of (seed, name, i): a counter-based generator (SplitMix64 keyed by XXH3-64 of the name) through
// the Box-Muller transform in double. Pure: any thread may fill any parameter.
void FillInitialWeights(const model::Parameter& parameter, std::uint64_t seed, std::span<float> out);

}  // namespace takt::train
