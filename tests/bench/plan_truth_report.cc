// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/plan_truth_report.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/status.h"
#include "tests/bench/statistics.h"

namespace takt::bench {

StepTiming TimingOf(const std::vector<double>& first_run, const std::vector<double>& second_run) {
  const double first = Median(first_run), second = Median(second_run);
  std::vector<double> both = first_run;
  both.insert(both.end(), second_run.begin(), second_run.end());
  return {.seconds = Median(std::move(both)),
          .spread = std::abs(first - second) / ((first + second) / 2)};
}

ErrorSummary Summarise(const std::vector<double>& errors, double limit) {
  ErrorSummary summary{.jobs = static_cast<int>(errors.size())};
  std::vector<double> absolute;
  for (const double error : errors) absolute.push_back(std::abs(error));
  for (const double error : absolute) {
    summary.within += error <= limit ? 1 : 0;
    summary.largest = std::max(summary.largest, error);
  }
  if (!absolute.empty()) summary.median = Median(std::move(absolute));
  return summary;
}

bool IsTrue(const ErrorSummary& real, double limit) {
  return 24 * real.within >= 22 * real.jobs && real.largest <= 2 * limit &&
         real.median <= limit / 2;
}

Comparison Compare(const MeasuredWay& one, const std::vector<MeasuredWay>& others,
                   double tolerance) {
  TAKT_CHECK(!others.empty());
  const MeasuredWay& best = *std::ranges::min_element(
      others, {}, [](const MeasuredWay& way) { return way.timing.seconds; });
  return {.best = best.name,
          .ratio = one.timing.seconds / best.timing.seconds,
          .limit = 1 + std::max({tolerance, one.timing.spread, best.timing.spread})};
}

}  // namespace takt::bench
