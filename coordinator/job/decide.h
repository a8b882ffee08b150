// SPDX-License-Identifier: Apache-2.0
// What to do with a job that holds its gang: a pure function of what is known about its ranks.
//
//   QUEUED --(gang is there)--> PLANNING --(plan)--> STARTING --(all admitted)--> RUNNING --(all
//   finished)--> SUCCEEDED
//      ^                           |                     |                           |
//      +------(a worker left)------+                     +-------- kStop ------------+--(ranks let
//      go)--> FAILED | CANCELLED
//
// Decide covers STARTING and RUNNING; queue.h decides who leaves QUEUED, cluster.cc applies both.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/store/record.h"

namespace takt::job {

enum class RankPhase : std::uint8_t {
  kAway,       // after a restart or a stall of the coordinator: not heard from yet
  kPreparing,  // told to prepare
  kAdmitted,
  kRunning,  // told to start
  kFinished,
  kRefused,
  kFailed,
  kAborted,
};

// True once the worker has told how its rank ended.
constexpr bool IsTerminal(RankPhase phase) { return phase >= RankPhase::kFinished; }

struct RankRun {
  store::BoundRank bound;
  RankPhase phase = RankPhase::kPreparing;
  std::optional<std::string> lost;     // why its worker is gone
  std::string error;                   // of kRefused, kFailed, kAborted
  bool invalid_input = false;          // of kRefused
  std::vector<FieldError> violations;  // of invalid_input
  store::RankStatus status;            // last reported
};

struct JobRun {
  store::JobState state = store::JobState::kStarting;  // kStarting or kRunning
  std::optional<store::JobStop> stop;
  std::int64_t steps = 0;
  std::int64_t committed_steps = 0;
  std::vector<RankRun> ranks;
  absl::Duration since;  // steady; when this state began here, or the last rank went away
  std::optional<absl::Duration> stop_since;    // when the stop was told
  std::optional<absl::Duration> finish_since;  // when the last rank finished
};

struct DecideOptions {
  // From Prepare until all are admitted.
  absl::Duration admission_timeout = absl::Minutes(5);
  // After a restart or a stall of the coordinator, until all ranks are heard from: two leases and
  // some.
  absl::Duration return_grace = absl::Seconds(15);
  // From Abort until a survivor has told what it was waiting for. With the lease it stays below ten
  // seconds.
  absl::Duration stop_grace = absl::Seconds(2);
  // From the last rank's finish until the last step reports have come.
  absl::Duration reports_grace = absl::Seconds(30);
};

struct Decision {
  enum class Kind : std::uint8_t {
    kWait,   // nothing to do; `reason` says for what
    kStart,  // all are admitted: RUNNING, tell them to start
    kStop,   // end it as `state`: tell the ranks to let go
    kEnd,    // it is over as `state`
  };
  Kind kind = Kind::kWait;
  std::string reason;
  store::JobState state = store::JobState::kRunning;
  bool invalid_input = false;
  std::vector<FieldError> violations;  // of invalid_input
};

Decision Decide(absl::Duration now, const JobRun& run, const DecideOptions& options);

// For people: what went wrong first, where it was, and what every other rank was waiting for.
std::string DescribeFault(const JobRun& run);

}  // namespace takt::job
