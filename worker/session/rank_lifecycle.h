// SPDX-License-Identifier: Apache-2.0
// Decides what a worker does with the one rank it may hold. It is pure: events go in, effects come
// out; it uses no threads, no clock and no wire.
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
// A worker that is asked to leave tells the coordinator, which halts or aborts the job, and exits
// once it is idle. If it is asked again, has no coordinator, or has waited for leave_timeout, it
// stops the rank, which fails, and then exits.
//
// A worker whose device is lost to its process (Poisoned) asks for nothing new. It exits as well,
// once the coordinator has stored the end of the rank.
//
// The worker keeps the end of a rank, and sends it again after every reconnection, until the
// coordinator has stored it (Acknowledge) or assigns something new.
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
inline constexpr int kExitLeft = 0;  // asked to leave
// After these, only a new process is clean again: a teardown hung, or the device that the rank
// computed on failed for good.
inline constexpr int kExitStuck = 70;
inline constexpr int kExitPoisoned = 71;

struct EffectBuild {  // start a thread that prepares `key`
  control::JobKey key;
};
struct EffectRun {};
struct EffectHalt {  // ask for the end at a step boundary
  bool in_memory = false;
};
// Send a heartbeat at once instead of waiting until the next one is due.
struct EffectHeartbeat {};
struct EffectStop {  // end every wait of the held rank, and do as EffectRelease
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
class RankLifecycle {
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

  explicit RankLifecycle(absl::Duration leave_timeout = absl::Minutes(1))
      : leave_timeout_(leave_timeout) {}

  // Events from the coordinator. A command for a generation that is not held changes nothing, but
  // Abort is answered all the same.
  Effects Prepare(const control::JobKey& key, Rank rank);
  Effects Start(const control::JobKey& key);
  Effects Halt(const control::JobKey& key, bool in_memory = false) const;
  Effects Abort(const control::JobKey& key, const std::string& reason,
                const control::RankStatus& status, absl::Duration now);
  Effects Acknowledge(const control::JobKey& key);
  // Attached: the stream is up (again). Detached: it is down.
  Effects Attached() const;
  Effects Detached(const control::RankStatus& status, absl::Duration now);

  // Events from the thread of the held rank.
  Effects Built(const absl::StatusOr<control::Resumed>& resumed, absl::Duration now);
  Effects RunEnded(const absl::StatusOr<RunEnd>& end, const control::RankStatus& rank_status,
                   absl::Duration now);
  Effects Poisoned(const absl::Status& reason);
  Effects Gone();
  Effects FirstStepDone() const;
  // Every report is acknowledged.
  Effects Flushed(const control::RankStatus& status, absl::Duration now);

  // Events from the process. Leave: it was asked to leave (SIGTERM). Tick: time has passed.
  Effects Leave(const control::RankStatus& status, absl::Duration now);
  // Whether it is time to call Leave again.
  bool LeaveIsDue(absl::Duration now) const { return now >= leave_deadline_; }
  Effects Tick(absl::Duration now) const;

  State state() const { return state_; }
  const control::JobKey& key() const { return key_; }  // meaningful only while not idle
  Rank rank() const { return rank_; }
  bool Holds(const control::JobKey& key) const { return state_ != State::kIdle && key == key_; }
  // What the rank resumes from; meaningful only once it was admitted.
  const control::Resumed& resumed() const { return resumed_; }
  // The end that was sent, once there is one.
  const std::optional<control::JobUpdate>& end() const { return end_; }

 private:
  Effects End(control::Phase phase, const absl::Status& error, const control::RankStatus& status);
  Effects Build(const control::JobKey& key, Rank rank);
  Effects BecomeIdle();
  Effects LeaveNow(const control::RankStatus& status, absl::Duration now);
  control::JobUpdate Update(control::Phase phase, const absl::Status& error,
                            const control::RankStatus& status) const;

  State state_ = State::kIdle;
  control::JobKey key_;
  Rank rank_;
  control::Resumed resumed_;
  // The end to send once all reports are acknowledged.
  control::Phase run_end_ = control::Phase::kFinished;
  std::optional<control::JobUpdate> end_;
  absl::Status stop_reason_;
  absl::Status poisoned_;            // not OK: why this process will hold no more ranks
  control::RankStatus stop_status_;  // what the rank was doing when it was told to stop
  bool gone_ = true;                 // the thread of the rank before is gone
  bool acknowledged_ = false;
  const absl::Duration leave_timeout_;
  bool leaving_ = false;      // to exit as soon as it is idle
  bool leaving_now_ = false;  // to exit as soon as the thread is gone
  absl::Duration leave_deadline_ = absl::InfiniteDuration();
  absl::Duration teardown_deadline_ = absl::InfiniteDuration();
  // To be prepared once the thread of the rank before is gone.
  std::optional<std::pair<control::JobKey, Rank>> next_;
};

}  // namespace takt::session
