// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/statistics.h"

#include <algorithm>
#include <cmath>

namespace takt::bench {

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double Spread(std::vector<double> values) {
  std::ranges::sort(values);
  const double quartiles = values[values.size() * 3 / 4] - values[values.size() / 4];
  return quartiles / 2 / std::sqrt(static_cast<double>(values.size()));
}

}  // namespace takt::bench
