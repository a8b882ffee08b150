// SPDX-License-Identifier: Apache-2.0
// Decides what a worker does with the one rank it may hold. Pure: events in, effects out; no
// threads, no clock, no wire.
//
//          Prepare              Built ok             Start             RunEnded ok
//   [idle] ---------> [preparing] -----> [admitted] -------> [running] --------> [flushing]
//                       |    |              |                 |    |               |    |
//            Built error|    |Abort         |Abort       Abort|    |RunEnded  Abort|    |Flushed
//                       |    v              v                 v    |error          v    |
//                       |   [stopping] <-- [stopping] <-- [stopping] <----- [stopping]   |
//                       |    |Gone                                 |                    |
//                       v    v                                     v                    v
//                      [ended: refused, aborted, failed, finished or halted] ------------'
//                        |
//                        '--> [idle] once Gone and (Acknowledge, or a Prepare for another
//                             generation, which begins at [preparing])
//
// Halt changes no state: the run then ends at a step boundary that all ranks agree on, and the end
// is `halted` unless that was the job's last step.
//
// Asked to leave, a worker tells the coordinator, which halts or aborts what it holds, and goes
// once it is idle. Asked again, without a coordinator, or after leave_timeout, it stops the rank,
// which fails, and goes.
//
// Poisoned by what the rank computed on, it asks for nothing new and goes as well, once the end of
// the rank is stored.
//
// The end of a rank is kept, and told again after every
// reconnection, until the coordinator has stored it (Acknowledge) or hands out something new.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/control/attachment.h"
#include "common/control/job_key.h"
#include "common/control/rank_status.h"
#include "worker/session/rank_runner.h"

namespace takt::session {

// Exit codes of the worker.
inline constexpr int kExitLeft = 0;     // asked to leave
inline constexpr int kExitRefused = 2;  // the coordinator speaks another protocol version
// Only a new process is clean again: a teardown hung; what it computes on failed for good.
inline constexpr int kExitStuck = 70;
inline constexpr int kExitPoisoned = 71;

struct EffectBuild {  // start a thread that prepares `key`
  control::JobKey key;
};
struct EffectRun {};
struct EffectHalt {};  // ask for the end at a step boundary
// Say what the rank does now, not only when the next heartbeat is due.
struct EffectHeartbeat {};
struct EffectStop {  // end every wait of the held rank; then as EffectRelease
  absl::Status reason;
};
struct EffectRelease {};  // let the thread tear down and end; Gone follows
struct EffectSend {
  control::JobUpdate update;
};
// Tell the coordinator that this worker was asked to leave.
struct EffectLeaving {
  std::string reason;
};
struct EffectExit {
  int code = 0;
  std::string reason;
};
using Effect = std::variant<EffectBuild, EffectRun, EffectHalt, EffectHeartbeat, EffectStop,
                            EffectRelease, EffectSend, EffectLeaving, EffectExit>;
using Effects = std::vector<Effect>;

// One caller at a time.
class HeldJob {
 public:
  enum class State : std::uint8_t {
    kIdle,
    kPreparing,
    kAdmitted,
    kRunning,
    kFlushing,
    kStopping,
    kEnded
  };

  // A teardown that takes longer is stuck.
  static constexpr absl::Duration kTeardownTimeout = absl::Seconds(10);

  explicit HeldJob(absl::Duration leave_timeout = absl::Minutes(1))
      : leave_timeout_(leave_timeout) {}

  // From the coordinator. A command for a generation that is not held changes nothing; Abort
  // answers it all the same.
  Effects Prepare(const control::JobKey& key, Rank rank);
  Effects Start(const control::JobKey& key);
  Effects Halt(const control::JobKey& key) const;
  Effects Abort(const control::JobKey& key, const std::string& reason,
                const control::RankStatus& status, absl::Duration now);
  Effects Acknowledge(const control::JobKey& key);
  // The stream is up (again); it is down.
  Effects Attached() const;
  Effects Detached(const control::RankStatus& status, absl::Duration now);
  // The coordinator will not have this worker at all.
  Effects Refused(const std::string& reason) const;

  // From the thread of the held rank.
  Effects Built(const absl::StatusOr<control::Resumed>& resumed, absl::Duration now);
  Effects RunEnded(const absl::StatusOr<RunEnd>& end, const control::RankStatus& rank_status,
                   absl::Duration now);
  Effects Poisoned(const absl::Status& reason);
  Effects Gone();
  Effects FirstStepDone() const;
  // Every report is acknowledged.
  Effects Flushed(const control::RankStatus& status, absl::Duration now);

  // From the process: asked to leave (SIGTERM); time passed.
  Effects Leave(const control::RankStatus& status, absl::Duration now);
  // Whether it is time to call Leave again.
  bool LeaveIsDue(absl::Duration now) const { return now >= leave_deadline_; }
  Effects Tick(absl::Duration now) const;

  State state() const { return state_; }
  const control::JobKey& key() const { return key_; }  // meaningful unless idle
  Rank rank() const { return rank_; }
  // The end that was told, once there is one.
  const std::optional<control::JobUpdate>& end() const { return end_; }

 private:
  Effects End(control::Phase phase, const absl::Status& error, const control::RankStatus& status);
  Effects Build(const control::JobKey& key, Rank rank);
  Effects BecomeIdle();
  Effects LeaveNow(const control::RankStatus& status, absl::Duration now);
  control::JobUpdate Update(control::Phase phase, const absl::Status& error,
                            const control::RankStatus& status) const;
  bool Holds(const control::JobKey& key) const { return state_ != State::kIdle && key == key_; }

  State state_ = State::kIdle;
  control::JobKey key_;
  Rank rank_;
  control::Resumed resumed_;
  control::Phase run_end_ = control::Phase::kFinished;  // to be told once everything is flushed
  std::optional<control::JobUpdate> end_;
  absl::Status stop_reason_;
  absl::Status poisoned_;            // why this process will hold nothing more
  control::RankStatus stop_status_;  // what it was doing when it was told to stop
  bool gone_ = true;                 // no thread
  bool acknowledged_ = false;
  const absl::Duration leave_timeout_;
  bool leaving_ = false;      // as soon as it is idle
  bool leaving_now_ = false;  // as soon as the thread is gone
  absl::Duration leave_deadline_ = absl::InfiniteDuration();
  absl::Duration teardown_deadline_ = absl::InfiniteDuration();
  std::optional<std::pair<control::JobKey, Rank>>
      next_;  // waits for the thread of the one before to be gone
};

}  // namespace takt::session
