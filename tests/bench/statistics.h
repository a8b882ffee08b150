// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

namespace takt::bench {

// Precondition: there is at least one value.
double Median(std::vector<double> values);

// Returns half the distance between the quartiles, divided by the root of the number of values. The
// median of another such run may differ by that much.
double Spread(std::vector<double> values);

}  // namespace takt::bench
