// SPDX-License-Identifier: Apache-2.0
// This table has every time span by which the coordinator decides, shortest first. Each is the
// default of the option that names it. timeouts_test.cc holds the order that the rules depend on.
#pragma once

#include "absl/time/time.h"

namespace takt::timeouts {

// Step reports and log lines wait this long for others, so that one transaction stores them all.
inline constexpr absl::Duration kBatchInterval = absl::Milliseconds(20);
// The deciding thread looks this often at what only time changes.
inline constexpr absl::Duration kTick = absl::Milliseconds(100);
// While jobs wait, the queue is served this often though nothing but the time has changed, so that
// what jobs are told to wait for stays true.
inline constexpr absl::Duration kServeQueue = absl::Seconds(1);
// Ended jobs that need not be kept are deleted this often, a few at a time.
inline constexpr absl::Duration kForgetJobs = absl::Seconds(1);
// While the disk is full, the coordinator tries to store what waits this often.
inline constexpr absl::Duration kRetryFullDisk = absl::Seconds(1);
// A coordinator that follows looks this often whether the leader is gone, and for changes.
inline constexpr absl::Duration kFollow = absl::Seconds(1);
// A worker sends a heartbeat this often. The coordinator tells it so when it attaches.
inline constexpr absl::Duration kHeartbeat = absl::Seconds(1);
// A worker whose stream ended has dialled again after this time, even if one attempt failed, and
// the other ranks of its job have sent a heartbeat since. If it has not, and they make no progress,
// it is lost.
inline constexpr absl::Duration kRedial = absl::Milliseconds(1500);
// The coordinator does not wait longer than this for an answer of a member of etcd.
inline constexpr absl::Duration kStateCall = absl::Seconds(2);
// This long after an Abort, a rank that has not said how it ended counts as ended. Together with
// the lease this is less than ten seconds, so that a fault is settled within that time.
inline constexpr absl::Duration kStopGrace = absl::Seconds(2);
// This long after a rank has refused what the job names, the coordinator waits for what the other
// ranks see. All look at the same files at the same time.
inline constexpr absl::Duration kInputsGrace = absl::Seconds(3);
// A coordinator that leads and does not renew its lease in etcd for this long loses it. It ends
// itself after seven tenths of that.
inline constexpr absl::Duration kLeaderLease = absl::Seconds(5);
// A worker from which nothing is heard for this long is lost, unless its silence is excused
// (membership.h).
inline constexpr absl::Duration kLease = absl::Seconds(5);
// After its second fault in a row without a new step, a job waits for this long before it begins
// again, and each time for twice as long. After the first it does not wait.
inline constexpr absl::Duration kFirstBackoff = absl::Seconds(10);
// A worker must have been idle for this long before a running job takes it to grow, and the job
// must have had its size for as long. Both are longer for a job that takes long to start (replan.h
// of coordinator/job).
inline constexpr absl::Duration kGrow = absl::Seconds(10);
// A profile that changes is stored this often.
inline constexpr absl::Duration kSaveProfile = absl::Seconds(10);
// After a restart or a stall of the coordinator, or after most workers were silent, a worker has
// this long to come back. It redials within two leases. After a restart with many ranks it has
// longer (admission.h).
inline constexpr absl::Duration kReturnGrace = absl::Seconds(15);
// This long after the end of a job's last rank, its missing step reports are given up.
inline constexpr absl::Duration kReportsGrace = absl::Seconds(30);
// While most workers are silent and some are not, no worker is lost for this long.
inline constexpr absl::Duration kCutOff = absl::Seconds(30);
// After a coordinator has ended while it made a job's plan, the next one waits for this long before
// it makes that plan, and after the second one for twice as long.
inline constexpr absl::Duration kPlanningPause = absl::Seconds(30);
// The other ranks of a silent worker's job need not make progress sooner than within one of their
// steps, if a step takes at most this long.
inline constexpr absl::Duration kLongestStep = absl::Seconds(30);
// A peer that does not take one message for this long loses its stream.
inline constexpr absl::Duration kStreamStall = absl::Minutes(1);
// A running job is planned again with what was measured since at most this often.
inline constexpr absl::Duration kReplan = absl::Minutes(1);
// A job waits no longer than this after a fault.
inline constexpr absl::Duration kLongestBackoff = absl::Minutes(5);
// A plan that takes longer is given up, if the planner runs in a child process.
inline constexpr absl::Duration kPlanningLimit = absl::Minutes(5);
// While ranks connect, at least one of them must make progress within this time.
inline constexpr absl::Duration kAdmissionTimeout = absl::Minutes(5);
// Within this time after the last rank has reported its part of a checkpoint, a worker must have
// made the whole visible.
inline constexpr absl::Duration kCommitTimeout = absl::Minutes(5);
// A worker is quarantined for this long, and each time in a row for twice as long.
inline constexpr absl::Duration kFirstQuarantine = absl::Minutes(10);
// The metrics of a job stay for this long after its end.
inline constexpr absl::Duration kKeepEndedMetrics = absl::Minutes(10);
// While a rank loads, the same holds for this long: checkpoints and weights may be large. Workers
// wait for one another as long.
inline constexpr absl::Duration kLoadingTimeout = absl::Hours(1);
// A worker that is blamed for two faults within this time, by two jobs, is quarantined. For as long
// a job takes a worker that it blames only where there is no other.
inline constexpr absl::Duration kBlameSoon = absl::Hours(1);
// A job that has faults for this long without a new step is given up.
inline constexpr absl::Duration kGiveUp = absl::Hours(1);
// A lost worker stays listed for this long. A drained one stays for ever.
inline constexpr absl::Duration kForgetWorker = absl::Hours(1);
// A worker that is blamed for three faults within this time, by two jobs, is quarantined. Older
// faults are forgotten. A fault counts half after this time in a worker's score.
inline constexpr absl::Duration kBlameLate = absl::Hours(24);
// A worker is quarantined no longer than this.
inline constexpr absl::Duration kLongestQuarantine = absl::Hours(24);

}  // namespace takt::timeouts
