// SPDX-License-Identifier: Apache-2.0
// Decides which workers run a job's ranks and what each rank gets of its host. All functions are
// pure: they depend on the job's spec and on what the workers told when they attached.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/config/job_spec.h"
#include "common/plan/offers.h"
#include "common/plan/plan.h"
#include "common/profile/learn.h"
#include "coordinator/membership/membership.h"
#include "coordinator/placement/queue.h"

namespace takt::placement {

using membership::Worker;
using Workers = std::map<std::string, Worker>;  // by name
using Gang = std::vector<const Worker*>;

// Returns the lowest version of the protocol that the workers speak. If there are none, it is the
// version of this program.
int OldestProtocol(const Gang& gang);

// Returns what all ranks of the job compute on (common/plan/offers.h).
config::DeviceKind DeviceOf(const config::JobSpec& spec, config::DeviceKind before,
                            const Workers& workers);

Need NeedOf(const config::JobSpec& spec, config::DeviceKind device);

// Lists idle workers in the order of their hosts, so that neighbours in the pipeline are on one
// host where possible. It fills in which workers each job holds. The caller fills in the rest of
// these jobs, and the quotas.
Capacity CapacityOf(const Workers& workers);

// Sorts the workers of a gang by host, then by name. They get their ranks in this order unless
// measured links ask for another one (rank_order.h). A Grant lists them in the same order.
void SortByRank(Gang& gang, config::DeviceKind device);

// Returns what a plan of the job for this gang may assume (common/plan/offers.h). All of `workers`
// that are attached on the gang's hosts share the cores of these.
plan::PlanOptions PlanOptionsFor(const config::JobSpec& spec, const Gang& gang,
                                 config::DeviceKind device, const Workers& workers);

// Returns what a plan may assume that only checks a submitted job. Its gang is not known yet, so
// all workers that are attached now stand for it; but it may need more of them, and more memory,
// than there are. The spec must leave neither its size nor bits open (JobSpec).
plan::PlanOptions PlanOptionsFor(const config::JobSpec& spec, const Workers& workers);

// Returns where the ranks of a job run, by rank. ranks, threads: by rank.
std::vector<profile::RankPlace> PlacesOf(const Gang& ranks, const std::vector<int>& threads,
                                         config::DeviceKind device);

// Returns the number of compute threads of each rank: the one that the spec names, or that of the
// worker among those that are attached to its host (plan::ThreadsOf).
std::vector<int> ThreadsOf(const config::JobSpec& spec, const Gang& ranks, const Workers& workers);

// Returns the rate of the job's products that the worker measured (common/plan/offers.h).
double FlopsPerSecond(const config::JobSpec& spec, const Worker& worker, config::DeviceKind device);

}  // namespace takt::placement
