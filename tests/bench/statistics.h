// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

namespace takt::bench {

// Of at least one value.
double Median(std::vector<double> values);

// Half the distance between the quartiles, over the root of their number: how far the median of
// another such run may be.
double Spread(std::vector<double> values);

}  // namespace takt::bench
