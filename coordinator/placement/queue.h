// SPDX-License-Identifier: Apache-2.0
// A gang is all the workers that one job needs at once. The queue says which waiting jobs get their
// gang now, and what the others wait for. A gang is given whole or not at all.
//
// Order: jobs that recover from a fault come first, then higher priorities, then earlier jobs.
// Running jobs that could use more workers come last.
//
// A job that does not fit reserves its gang for the earliest time at which it is free, by the
// predicted ends of the jobs that run. A job that comes later in the order starts now only if that
// delays no reservation before it: it ends before, or enough of the right workers are left
// (conservative backfill: Mu'alem and Feitelson, IEEE TPDS 12(6), 2001; we predict durations
// ourselves, and reserve again from nothing at each call). A reservation is thus not delayed by a
// later job, as long as the predictions hold. At most kMaxReservations jobs reserve at once, the
// first ones, so that the time of a call grows with the number of jobs and not with its square.
//
// All times are seconds from now.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/id.h"
#include "common/base/version.h"
#include "common/config/job_spec.h"
#include "common/model/model.h"
#include "coordinator/placement/quotas.h"

namespace takt::placement {

// A time that is this late is not known. It comes after all times that are known.
inline constexpr double kUnknownSeconds = 1e12;

inline constexpr int kMaxReservations = 256;

// A job needs exactly `workers` workers, or with `up_to_all` at least that many and as many as are
// idle and not reserved, up to `most`.
struct Need {
  int workers = 1;
  bool up_to_all = false;
  std::optional<int> most = std::nullopt;  // of up_to_all
  // The ranks of a tensor group. Hosts that can hold whole groups are taken first.
  int group = 1;
  // All of them compute on this kind: kCpu or kCuda. Every worker has cores. For kCpu, workers
  // without a GPU are taken first.
  config::DeviceKind device = config::DeviceKind::kCpu;
  // Each worker must have NCCL and a GPU that no other worker of the gang uses.
  bool nccl = false;
  bool cuda_ipc = false;  // its transport is, which computes on GPUs alone
  // On kCuda each worker must have a GPU that multiplies so (config::MostFp8On).
  model::Fp8Recipe fp8 = model::Fp8Recipe::kNone;
  int protocol = kOldestProtocolVersion;  // each worker must speak this version at least
  bool operator==(const Need&) const = default;
};

struct WaitingJob {
  std::string name;
  Need need;
  bool recovers = false;  // it trained before a fault
  // The ranks of its last run have not ended yet, or it waits after a fault. It reserves a gang,
  // but is not granted one.
  bool stopping = false;
  // It trains, and could use `need` more workers. It comes after all jobs that wait, reserves
  // nothing and pauses no job. Its Grant has workers only if they are idle now.
  bool grows = false;
  int priority = config::kDefaultPriority;
  std::int64_t number = 0;        // order of submission
  std::optional<double> seconds;  // for which it will hold its gang; nullopt: that is not known
  std::string owner = {};
  // The workers that it blames, with the number of faults. It takes them last. Where it takes as
  // many workers as there are, it does without those that it blames twice.
  std::map<std::string, int> blamed = {};
  // The workers that it takes first, because they hold its state in memory.
  std::set<std::string> preferred = {};
  // Its state is nowhere else, and a job that gets those workers frees it. While it waits, no later
  // job gets them, and earlier ones take them last, among workers of one kind.
  bool keeps_preferred = false;
  bool operator==(const WaitingJob&) const = default;
};

struct GangWorker {
  std::string name;
  bool has_gpu = false, has_nccl = false;
  std::string gpu = {};  // its uuid
  std::string host = {};
  int protocol = kProtocolVersion;
  model::Fp8Recipe fp8 = model::Fp8Recipe::kNone;  // the last by which its GPU multiplies
  bool operator==(const GangWorker&) const = default;
};

// A generation of a job that holds workers.
struct Holder {
  std::string name;
  Generation generation = {};
  std::vector<GangWorker> workers;  // these are idle when the job ends
  int num_others = 0;               // retired or away: they may not come back
  std::optional<double> ends_in;    // nullopt: that is not known
  std::string owner = {};
  int priority = config::kDefaultPriority;
  bool can_pause = false;  // it can give its workers up and go on later
  bool halting = false;    // it was told to give them up
  double held_seconds = 0;

  int num_workers() const { return static_cast<int>(workers.size()) + num_others; }
  bool operator==(const Holder&) const = default;
};

struct Capacity {
  // These are attached, not held and not drained. They are in the order in which ranks are given
  // out.
  std::vector<GangWorker> idle;
  std::vector<Holder> held;
  int drained = 0, leaving = 0, quarantined = 0;  // attached, not held
  Quotas quotas = Quotas();
  bool operator==(const Capacity&) const = default;
};

struct Grant {
  std::vector<std::string> workers;  // by rank; empty: none
  // e.g. "needs 4 workers, 2 idle: 2 held by job x; 4 are reserved for it in about 15 min"
  std::string reason;
  // When its gang is free; at least kUnknownSeconds: that is not known. nullopt: the job is granted
  // its gang, or reserves no workers.
  std::optional<double> reserved_in;
  // These jobs, of lower priorities, are to be paused so that this job gets its gang.
  std::vector<std::string> preempts;
};

// Returns one grant for each job, in the same order.
std::vector<Grant> GrantGangs(const std::vector<WaitingJob>& waiting, const Capacity& capacity);

}  // namespace takt::placement
