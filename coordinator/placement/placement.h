// SPDX-License-Identifier: Apache-2.0
// Which workers run a job's ranks and what each rank gets of its host: pure functions of the job's
// spec and of what the workers told when they attached.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/config/job_spec.h"
#include "common/plan/plan.h"
#include "coordinator/membership/membership.h"
#include "coordinator/placement/queue.h"

namespace takt::placement {

using membership::Worker;
using Workers = std::map<std::string, Worker>;  // by name
using Gang = std::vector<const Worker*>;        // by rank

// What all ranks of the job compute on. A job that leaves the choice gets GPUs where there are any.
// `before` is what it computed on before, kAuto if it never did: the job keeps to that kind,
// because another one rounds differently.
config::DeviceKind DeviceOf(const config::JobSpec& spec, config::DeviceKind before,
                            const Workers& workers);

Need NeedOf(const config::JobSpec& spec, config::DeviceKind device);

// Idle workers in the order of their hosts, so that neighbours in the pipeline are neighbours on a
// host where possible.
Capacity CapacityOf(const Workers& workers);

// The order in which the workers of a gang are given ranks; the same as in the gang's Grant.
void SortByRank(Gang& gang, config::DeviceKind device);

// What a plan for this gang may assume. The slowest worker sets the rate. Workers on one host share
// its memory evenly, those on one GPU the GPU's, and the smallest share is the limit.
plan::PlanOptions PlanOptionsFor(const Gang& gang, config::DeviceKind device);

// What a plan may assume that only checks a submitted job, before its workers are known. The spec
// must name its pipeline.
plan::PlanOptions PlanOptionsFor(const config::JobSpec& spec);

// Compute threads of a rank: those that the spec names, or an even share of the host's cores among
// the workers that are attached there.
int ThreadsOf(const config::JobSpec& spec, const Worker& worker, const Workers& workers);

// The rate of matrix products that the worker measured on `device`; 0: it did not measure.
double FlopsPerSecond(const Worker& worker, config::DeviceKind device);

}  // namespace takt::placement
