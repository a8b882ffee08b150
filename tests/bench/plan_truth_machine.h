// SPDX-License-Identifier: Apache-2.0
// This machine, as `takt-bench plan-truth` uses it: it learns what jobs take here, and runs them.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/matmul_rates.h"
#include "common/config/job_spec.h"
#include "common/plan/plan.h"
#include "common/profile/layer_shape.h"
#include "common/profile/profile.h"

namespace takt::bench {

// Returns the job with everything named that the plan chose. A plan of it has the same programs,
// whatever its costs are.
config::JobSpec Pinned(config::JobSpec job, const plan::Plan& plan);

// One caller at a time, in a process that has no other threads.
class TruthMachine {
 public:
  // data_root: of the jobs, for the object's life.
  explicit TruthMachine(std::string data_root) : data_root_(std::move(data_root)) {}

  // Returns a host whose cores the job's ranks have for themselves. Its ranks may be as many as its
  // pipeline names.
  static plan::Host HostOf(const config::JobSpec& job);

  // Returns what a plan of the job for such a host may assume if it knows `profile`.
  static plan::PlanOptions OptionsFor(const config::JobSpec& job,
                                      std::shared_ptr<const profile::Profile> profile);

  // Returns what a plan of the job may assume if nothing was profiled: FLOPs at the rate of large
  // products. The rate is measured once for each number of threads, as a worker measures it.
  absl::StatusOr<plan::PlanOptions> OptionsWithoutProfile(const config::JobSpec& job);

  // Runs probes of the job with so many ranks, and adds what they say.
  absl::Status Learn(const config::JobSpec& job, int num_ranks, profile::Profile& profile);

  // Runs the plan and returns the times of its steps, `steps` of them or, if they are long, fewer.
  // Those that warm up are left out.
  absl::StatusOr<std::vector<double>> StepSeconds(config::JobSpec job, const plan::Plan& plan,
                                                  int steps) const;

 private:
  absl::StatusOr<double> FlopsPerSecond(const config::JobSpec& job);
  absl::Status RunAndLearn(const config::JobSpec& job, const profile::Conditions& conditions,
                           profile::Profile& profile) const;

  const std::string data_root_;
  std::map<int, MatmulRates> rates_;  // by threads
};

}  // namespace takt::bench
