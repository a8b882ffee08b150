// SPDX-License-Identifier: Apache-2.0
// What workers offer to a job, and what a plan for them may assume.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/device.h"
#include "common/base/matmul_rates.h"
#include "common/config/job_spec.h"
#include "common/plan/plan.h"

namespace takt::plan {

struct WorkerOffer {
  std::string host;
  std::string processor;          // its name; empty: not known
  int cores = 1;                  // of the host
  int threads = 0;                // of a rank, where the job names no number; 0: an even share
  std::int64_t memory_bytes = 0;  // of the host; 0: not known
  MatmulRates matmul_rates;       // of its cores
  std::optional<Device> device;   // nullopt: it computes on its cores alone
};

// Returns what all ranks of the job compute on. A job that leaves the choice open gets GPUs if
// there are any. `before` is what the job computed on before, kAuto if it never did. The job keeps
// to that kind, because another one rounds differently.
config::DeviceKind DeviceOf(const config::JobSpec& job, config::DeviceKind before, bool any_gpu);

// Returns the rate that the worker measured on `device` of products of matrices as the job has
// them, or 0 if it measured none. A worker that does not tell its rate in bf16 counts with that in
// f32.
double FlopsPerSecond(const config::JobSpec& job, const WorkerOffer& offer,
                      config::DeviceKind device);

// Returns the name under which times of `device` are kept (profile::Conditions::machine). Empty: it
// is not known.
std::string MachineOf(const WorkerOffer& offer, config::DeviceKind device);

// Returns the compute threads of a rank on the worker, where the job names no number: the worker's
// own, or an even share of its host's cores, at most config::kMaxThreads. workers: attached to that
// host.
int ThreadsOf(const WorkerOffer& offer, int workers);

// Returns the host on which a rank has the fewest threads, and of several, as of hosts whose ranks
// compute on GPUs, the one with most workers for a core. All that are attached there count, because
// they share its cores. If there is none, nothing is known of it.
Host HostOf(const std::vector<WorkerOffer>& attached, config::DeviceKind device);

// Returns what a plan of the job for these workers may assume. The slowest worker sets the rate.
// Workers on one host share its memory evenly, workers on one GPU share the GPU's, and the smallest
// share is the limit. The host is HostOf(offers): set it if others are attached there as well.
// Precondition: all workers have a GPU if `device` is kCuda.
PlanOptions PlanOptionsFor(const config::JobSpec& job, const std::vector<WorkerOffer>& offers,
                           config::DeviceKind device);

}  // namespace takt::plan
