// SPDX-License-Identifier: Apache-2.0
// The coordinator's one deciding thread around Cluster, and its planning thread. RPCs post to it;
// it decides, stores, and only then shows and sends.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "common/metrics/registry.h"
#include "coordinator/job/board.h"
#include "coordinator/job/cluster.h"
#include "coordinator/job/cluster_metrics.h"
#include "coordinator/job/effects.h"
#include "coordinator/job/rendezvous.h"
#include "coordinator/timeouts/timeouts.h"

namespace takt::job {

struct CoordinatorOptions {
  ClusterOptions cluster;
  // plan::MakePlan, or a test's.
  std::function<absl::StatusOr<plan::Plan>(const config::JobSpec&, const plan::PlanOptions&)>
      make_plan;
  const Clock* clock = &Clock::Real();
  absl::Duration tick = timeouts::kTick;
  // Events that wait; beyond it TryPost refuses.
  std::size_t max_events = 100'000;
  // Plans that clients wait for; beyond it TryPlan refuses.
  std::size_t max_asked_plans = 16;
  metrics::Registry* metrics = nullptr;  // may be null
  // A generation is handed out; a job is deleted, by name. Called after the commit, on the deciding
  // thread; may be empty.
  std::function<void(const Launch&)> on_launch;
  std::function<void(const std::string&)> on_delete;
};

// Thread-safe. Ends by Stop (which the destructor calls), or by itself when the store fails: what
// is not durable is never shown, so the process must then end and start again.
class Coordinator final {
 public:
  using Event = std::function<void(Cluster&, Moment)>;

  // store: borrowed.
  static absl::StatusOr<std::unique_ptr<Coordinator>> Start(CoordinatorOptions options,
                                                            store::Store* store);
  ~Coordinator();

  // Calls `event` on the deciding thread. After Stop it is dropped.
  void Post(Event event);
  // The same for what a worker can send without bound; false: too much is waiting.
  bool TryPost(Event event);

  // Plans on the planning thread, once no job waits for its plan, and calls `done` there. After
  // Stop it is dropped. False: too many wait.
  using Planned = std::function<void(absl::StatusOr<plan::Plan>)>;
  bool TryPlan(config::JobSpec spec, const plan::PlanOptions& options, Planned done);

  // Jobs go on; nothing more is decided, and requests that wait for an answer are told
  // kUnavailable.
  void Stop();
  // Blocks until Stop was called or the store failed; its error.
  absl::Status WaitForEnd();

  const Board& board() const { return board_; }
  Board& board() { return board_; }
  Rendezvous& rendezvous() { return rendezvous_; }
  store::Store& store() { return *store_; }
  Moment now() const { return Moment::Of(*options_.clock); }

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
  // False: the coordinator ends.
  bool DecideOnce();
  // Stores, shows, then carries out the effects.
  absl::Status Flush(Outbox outbox);
  void PlanFor(const MakePlan& wanted);
  void Plan();

  const CoordinatorOptions options_;
  const EffectTargets targets_;
  store::Store* const store_;
  Board board_;
  Rendezvous rendezvous_;

  absl::Mutex mutex_;
  std::deque<TimedEvent> events_ ABSL_GUARDED_BY(mutex_);
  std::deque<WantedPlan> plans_ ABSL_GUARDED_BY(mutex_);        // of jobs
  std::deque<WantedPlan> asked_plans_ ABSL_GUARDED_BY(mutex_);  // of clients
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);

  // Of the deciding thread.
  std::unique_ptr<Cluster> cluster_;
  std::optional<ClusterMetrics> metrics_;
  absl::Duration last_round_, last_metrics_;
  std::thread planning_thread_, deciding_thread_;
};

}  // namespace takt::job
