// SPDX-License-Identifier: Apache-2.0
// What `takt-bench plan-truth` concludes from its measurements. Pure functions.
#pragma once

#include <string>
#include <vector>

namespace takt::bench {

// The time of a step, from two runs.
struct StepTiming {
  double seconds = 0;  // the median step of both runs
  double spread = 0;   // the difference of their medians, over the mean of the two
};

// Precondition: each run has at least one step.
StepTiming TimingOf(const std::vector<double>& first_run, const std::vector<double>& second_run);

// Errors are predicted / measured - 1.
struct ErrorSummary {
  int jobs = 0;
  int within = 0;      // of them, how many are within the limit
  double median = 0;   // of the absolute errors
  double largest = 0;  // likewise
};

ErrorSummary Summarise(const std::vector<double>& errors, double limit);

// Of the real jobs, at least 22 of 24 must be within the limit, and none above twice the limit; the
// median error must be within half of it. Returns whether that holds.
bool IsTrue(const ErrorSummary& real, double limit);

// A way to run a job that was run.
struct MeasuredWay {
  std::string name;
  StepTiming timing;
};

// Says how much slower one way is than the fastest of some others.
struct Comparison {
  std::string best;  // the fastest; it may be the one itself
  double ratio = 1;  // its time over that of the fastest
  double limit = 1;  // of the ratio: 1 + the largest of `tolerance` and the two spreads
  bool holds() const { return ratio <= limit; }
};

// Precondition: there are others.
Comparison Compare(const MeasuredWay& one, const std::vector<MeasuredWay>& others,
                   double tolerance);

}  // namespace takt::bench
