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

double Exponent(const std::vector<std::pair<double, double>>& points) {
  double x_sum = 0, y_sum = 0, xx_sum = 0, xy_sum = 0;
  for (const auto& [at, value] : points) {
    const double x = std::log(at), y = std::log(std::max(value, 1e-9));
    x_sum += x;
    y_sum += y;
    xx_sum += x * x;
    xy_sum += x * y;
  }
  const auto n = static_cast<double>(points.size());
  const double spread = n * xx_sum - x_sum * x_sum;
  return spread > 0 ? (n * xy_sum - x_sum * y_sum) / spread : 0;
}

}  // namespace takt::bench
