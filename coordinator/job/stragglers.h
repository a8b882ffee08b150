// SPDX-License-Identifier: Apache-2.0
// Finds ranks that compute slower than the plan says, compared with the other ranks. It is pure.
//
// A plan may be wrong by one factor for all ranks, so the time of a rank is divided by its
// prediction, and the quotient is compared with the median of all ranks. Where a pp rank has
// several ranks, a straggler must also be slow compared with the others of them: otherwise the plan
// is wrong about the stage.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/base/id.h"
#include "common/mesh/mesh.h"
#include "common/plan/plan.h"

namespace takt::job {

struct StragglerOptions {
  double slowdown = 1.5;
  // A rank is named after this many slow steps in a row. After as many steps that are not slow it
  // is no longer a straggler.
  int steps = 20;
};

struct Straggler {
  Rank rank;
  double slowdown = 1;  // when it was named
  StepId since;         // the first of the slow steps
  bool operator==(const Straggler&) const = default;
};

// Returns "computes 1.8 times as long as predicted, beside the other ranks, since step 120".
std::string DescribeStraggler(const Straggler& straggler);

// Returns the predicted seconds of compute in a step, by pp rank. Empty: the plan has no times, or
// its ranks have two copies of the weights, between which a rank's work is not told apart.
std::vector<double> PredictedCompute(const plan::Plan& plan);

// Watches the steps of one generation. One caller at a time.
class StragglerWatch final {
 public:
  StragglerWatch() = default;  // names no rank
  // predicted: as PredictedCompute.
  StragglerWatch(mesh::Mesh mesh, std::vector<double> predicted, StragglerOptions options = {});

  // busy: seconds of compute in the step, by rank. Nothing changes if one is missing.
  void Add(StepId step, const std::vector<double>& busy);
  // Returns the rank that is slow; of several, the one that was slowest when it was named.
  const std::optional<Straggler>& named() const { return named_; }

 private:
  // Returns how much longer each rank took than its share of the prediction; empty: not known.
  std::vector<double> SlowdownsOf(const std::vector<double>& busy) const;

  StragglerOptions options_;
  mesh::Mesh mesh_;
  std::vector<double> predicted_;  // by pp rank; empty: no rank is named
  std::vector<int> slow_steps_;    // in a row, by rank
  std::optional<Straggler> named_;
  int fast_steps_ = 0;  // of the named one, in a row
};

}  // namespace takt::job
