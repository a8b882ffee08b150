// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <vector>

namespace takt::bench {

// Precondition: there is at least one value.
double Median(std::vector<double> values);

// Returns half the distance between the quartiles, divided by the root of the number of values. The
// median of another such run may differ by that much.
double Spread(std::vector<double> values);

// Returns the exponent e of the curve a * x^e that is nearest to the points (x, y), as a line
// between logarithms. It is 0 if no two of them differ in x. Precondition: all x are positive.
double Exponent(const std::vector<std::pair<double, double>>& points);

}  // namespace takt::bench
