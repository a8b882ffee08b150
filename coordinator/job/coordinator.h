// SPDX-License-Identifier: Apache-2.0
// Runs a Cluster on one deciding thread, and makes plans on a second thread, and those of jobs that
// run on a third one. RPCs post events to it. It decides, stores, and only then shows and sends.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "common/base/steady_cond_var.h"
#include "common/metrics/registry.h"
#include "common/profile/profile.h"
#include "coordinator/job/board.h"
#include "coordinator/job/cluster.h"
#include "coordinator/job/cluster_metrics.h"
#include "coordinator/job/effects.h"
#include "coordinator/job/outbox.h"
#include "coordinator/job/rendezvous.h"
#include "coordinator/timeouts/timeouts.h"

namespace takt::job {

struct CoordinatorOptions {
  ClusterOptions cluster;
  // Makes a plan: plan::MakePlan, or a test's function. Its options have what was measured.
  std::function<absl::StatusOr<plan::Plan>(const config::JobSpec&, const plan::PlanOptions&)>
      make_plan;
  // The same for jobs that run, which must not be disturbed. Empty: make_plan does it, which must
  // then be safe to call on two threads.
  std::function<absl::StatusOr<plan::Plan>(const config::JobSpec&, const plan::PlanOptions&)>
      make_plan_beside_jobs;
  const Clock* clock = &Clock::Real();
  absl::Duration tick = timeouts::kTick;
  absl::Duration retry_full_disk = timeouts::kRetryFullDisk;
  // While this many events wait, TryPost refuses more.
  std::size_t max_events = 100'000;
  // While clients wait for this many plans, TryPlan refuses more.
  std::size_t max_asked_plans = 16;
  metrics::Registry* metrics = nullptr;  // may be null
  // These are called when a generation is handed out, and when the job of a name is deleted: after
  // the commit, on the deciding thread. They may be empty.
  std::function<void(const Launch&)> on_launch;
  std::function<void(const std::string&)> on_delete;
  // This is called when a checkpoint is visible or has failed, in the same way.
  std::function<void(const SettledCheckpoint&)> on_checkpoint;
};

// Thread-safe. It ends by Stop, which the destructor calls, or by itself when the store fails. What
// is not durable is never shown, so the process must then end and start again.
//
// A full disk is another matter: the coordinator is then read-only until there is room. It keeps
// listening to workers, but decides nothing by time, and what it decides by events waits with its
// effects. Requests are refused, except deletions; step reports and log lines are not taken.
class Coordinator final {
 public:
  using Event = std::function<void(Cluster&, Moment)>;

  // store: borrowed.
  static absl::StatusOr<std::unique_ptr<Coordinator>> Start(CoordinatorOptions options,
                                                            store::Store* store);
  // Returns a coordinator that decides nothing and takes no events, as after Stop. Its caller shows
  // on its board what another coordinator has decided. store: borrowed; it is only read.
  static std::unique_ptr<Coordinator> Follow(store::Store* store);
  ~Coordinator();

  // Calls `event` on the deciding thread. After Stop it is dropped.
  void Post(Event event);
  // The same for what a worker can send without bound. Returns false if too many events wait, or
  // while nothing can be stored.
  bool TryPost(Event event);

  // Makes a plan on the planning thread, once no job waits for its plan, and calls `done` there.
  // After Stop, `done` is dropped. Returns false if too many plans wait.
  using Planned = std::function<void(absl::StatusOr<plan::Plan>)>;
  bool TryPlan(config::JobSpec spec, const plan::PlanOptions& options, Planned done);

  // Nothing more is decided. Running jobs go on, and requests that wait for an answer get
  // kUnavailable. why: the first error counts.
  void Stop(const absl::Status& why = absl::OkStatus());
  // Blocks until Stop is called or the store fails, and returns the error of either.
  absl::Status WaitForEnd();

  const Board& board() const { return board_; }
  Board& board() { return board_; }
  Rendezvous& rendezvous() { return rendezvous_; }
  store::Store& store() { return *store_; }
  // Never null.
  std::shared_ptr<const profile::Profile> ReadProfile() const {
    return options_.cluster.read_profile();
  }
  // Returns whether jobs may name an experiment.
  bool tracks() const { return options_.cluster.tracks; }
  Moment now() const { return Moment::Of(*options_.clock); }
  // Is part of every command to a worker (store::Snapshot).
  std::int64_t epoch() const { return epoch_; }

 private:
  Coordinator(CoordinatorOptions options, store::Store* store);

  struct TimedEvent {
    Event event;
    Moment arrival;
  };

  struct WantedPlan {
    config::JobSpec spec;
    plan::PlanOptions options;
    Planned done;
  };

  void Decide();
  // Returns false when the coordinator ends.
  bool DecideOnce();
  // Stores, shows, then carries out the effects. While the disk is full all of that waits.
  absl::Status Flush(Outbox outbox, Moment now);
  void Show(const Outbox& outbox);
  void BeginReadOnly(const absl::Status& full, Moment now);
  void EndReadOnly(Moment now);
  void PlanFor(const MakePlan& wanted);
  void Plan();
  void PlanAgain();
  absl::StatusOr<ReplanOffer> OfferFor(const Replan& wanted) const;

  const CoordinatorOptions options_;
  const EffectTargets targets_;
  store::Store* const store_;
  std::int64_t epoch_ = 0;  // constant once the threads run
  Board board_;
  Rendezvous rendezvous_;

  absl::Mutex mutex_;
  SteadyCondVar posted_;   // an event, or Stop
  SteadyCondVar stopped_;  // Stop alone
  std::deque<TimedEvent> events_ ABSL_GUARDED_BY(mutex_);
  std::deque<WantedPlan> plans_ ABSL_GUARDED_BY(mutex_);        // of jobs
  std::deque<WantedPlan> asked_plans_ ABSL_GUARDED_BY(mutex_);  // of clients
  std::deque<Replan> replans_ ABSL_GUARDED_BY(mutex_);          // of jobs that run
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool takes_reports_ ABSL_GUARDED_BY(mutex_) = true;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);

  // Only the deciding thread uses these.
  std::unique_ptr<Cluster> cluster_;
  std::optional<ClusterMetrics> metrics_;
  absl::Duration last_round_, last_shown_;
  absl::Duration gather_;                      // how long events gather before the next round
  std::optional<Outbox> waiting_;              // while the coordinator is read-only
  absl::Status read_only_;                     // why; what requests are refused with
  absl::Duration read_only_since_, tried_at_;  // steady time
  std::thread planning_thread_, replanning_thread_, deciding_thread_;
};

}  // namespace takt::job
