// SPDX-License-Identifier: Apache-2.0
// Fits two constants to published runs, and says how well predictions agree with them. Pure
// functions.
#pragma once

#include <functional>
#include <vector>

#include "absl/status/statusor.h"

namespace takt::bench {

// Says what no description of a GPU tells: how well the software uses it.
struct FittedConstants {
  double peak_share = 0.6;           // of the published peak, that products reach
  double seconds_per_value = 2e-10;  // published_machine.h says of what

  bool operator==(const FittedConstants&) const = default;
};

// Predicts the steps of some runs.
using PredictSteps =
    std::function<absl::StatusOr<std::vector<double>>(const FittedConstants& constants)>;

// Returns the constants with which the sum of the squares of the relative errors is least. It goes
// from the usual constants towards them (Gauss-Newton), as long as that helps. Steps that depend
// only on the product rate leave the second constant as it is. Precondition: there is a run; no
// measured step is 0. Errors: those of `predict`.
absl::StatusOr<FittedConstants> FitConstants(const std::vector<double>& measured,
                                             const PredictSteps& predict);

// Returns Kendall's tau: of the pairs of runs with different measured steps, how many more are
// predicted in the right order than in the wrong one, as a share. Equal predictions count as
// neither. 0 if there is no such pair.
double KendallTau(const std::vector<double>& measured, const std::vector<double>& predicted);

// Returns the measured step of the run whose predicted step is shortest, over the shortest measured
// one. Precondition: there is a run.
double Regret(const std::vector<double>& measured, const std::vector<double>& predicted);

}  // namespace takt::bench
