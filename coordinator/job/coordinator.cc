// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/coordinator.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/base/status.h"

namespace takt::job {
namespace {

// Commands and reports wait at most so long for others that share their round.
constexpr absl::Duration kLongestGather = absl::Milliseconds(20);

}  // namespace

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::Start(CoordinatorOptions options,
                                                                store::Store* store) {
  RETURN_IF_ERROR(store->RaiseEpoch().status());
  ASSIGN_OR_RETURN(store::Snapshot snapshot, store->Load());
  std::unique_ptr<Coordinator> coordinator(new Coordinator(std::move(options), store));
  coordinator->epoch_ = snapshot.epoch;
  coordinator->cluster_ = std::make_unique<Cluster>(coordinator->options_.cluster,
                                                    std::move(snapshot), store, coordinator->now());
  if (coordinator->options_.metrics != nullptr) {
    coordinator->metrics_.emplace(coordinator->options_.metrics, &coordinator->board_);
    coordinator->metrics_->Tick(coordinator->cluster_->workers(), coordinator->now().wall);
  }
  // Readers see the restored jobs before the first RPC comes.
  RETURN_IF_ERROR(coordinator->Flush(coordinator->cluster_->TakeOutbox(), coordinator->now()));
  coordinator->planning_thread_ = std::thread(&Coordinator::Plan, coordinator.get());
  coordinator->replanning_thread_ = std::thread(&Coordinator::PlanAgain, coordinator.get());
  coordinator->deciding_thread_ = std::thread(&Coordinator::Decide, coordinator.get());
  return coordinator;
}

std::unique_ptr<Coordinator> Coordinator::Follow(store::Store* store) {
  std::unique_ptr<Coordinator> coordinator(new Coordinator(CoordinatorOptions(), store));
  coordinator->Stop();
  return coordinator;
}

Coordinator::Coordinator(CoordinatorOptions options, store::Store* store)
    : options_(std::move(options)),
      targets_{.rendezvous = &rendezvous_,
               .plan = [this](const MakePlan& wanted) { PlanFor(wanted); },
               .replan =
                   [this](const Replan& wanted) {
                     absl::MutexLock lock(&mutex_);
                     replans_.push_back(wanted);
                   },
               .on_launch = options_.on_launch,
               .on_delete = options_.on_delete},
      store_(store) {}

Coordinator::~Coordinator() {
  Stop();
  if (deciding_thread_.joinable()) deciding_thread_.join();
  for (std::thread* thread : {&planning_thread_, &replanning_thread_}) {
    if (thread->joinable()) thread->join();
  }
}

void Coordinator::Post(Event event) {
  const Moment arrival = now();
  absl::MutexLock lock(&mutex_);
  if (!stopping_) events_.push_back({std::move(event), arrival});
  posted_.SignalAll();
}

bool Coordinator::TryPost(Event event) {
  const Moment arrival = now();
  absl::MutexLock lock(&mutex_);
  if (!takes_reports_ || events_.size() >= options_.max_events) return false;
  if (!stopping_) events_.push_back({std::move(event), arrival});
  posted_.SignalAll();
  return true;
}

bool Coordinator::TryPlan(config::JobSpec spec, const plan::PlanOptions& options, Planned done) {
  absl::MutexLock lock(&mutex_);
  if (asked_plans_.size() >= options_.max_asked_plans) return false;
  if (!stopping_) asked_plans_.push_back({std::move(spec), options, std::move(done)});
  return true;
}

void Coordinator::Stop(const absl::Status& why) {
  // These are destroyed outside the lock, because dropping a request answers it.
  std::deque<TimedEvent> dropped;
  std::deque<WantedPlan> dropped_plans;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    failure_.Update(why);
    dropped.swap(events_);
    dropped_plans.swap(asked_plans_);
  }
  posted_.SignalAll();
  stopped_.SignalAll();
  rendezvous_.Stop();
}

absl::Status Coordinator::WaitForEnd() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&stopping_));
  return failure_;
}

void Coordinator::Decide() {
  pthread_setname_np(pthread_self(), "takt-decide");
  last_round_ = now().steady;
  while (DecideOnce()) {
    gather_ = std::min(now().steady - last_round_, kLongestGather);
  }
}

bool Coordinator::DecideOnce() {
  std::deque<TimedEvent> events;
  // The time is read before the events are taken. What was heard until then counts before any lease
  // is judged.
  Moment before;
  {
    absl::MutexLock lock(&mutex_);
    const auto some = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return stopping_ || !events_.empty();
    };
    const absl::Duration batch = options_.cluster.batch_interval;
    posted_.AwaitFor(mutex_, absl::Condition(&some),
                     cluster_->HasWaitingBatch() ? std::min(batch, options_.tick) : options_.tick);
    // A round costs something for every job, whatever it has to decide. So events wait for
    // as long as the last round took, at most kLongestGather. What comes meanwhile shares the
    // round and its commit, and deciding leaves time to the threads that read from workers.
    if (!stopping_ && !events_.empty())
      stopped_.AwaitFor(mutex_, absl::Condition(&stopping_), gather_);
    if (stopping_) return false;
    before = now();
    events.swap(events_);
  }
  const absl::Duration pause = before.steady - std::exchange(last_round_, before.steady);
  if (pause >= options_.cluster.membership.lease / 2) cluster_->ResumeAfterStall(pause, before);
  for (const TimedEvent& event : events) event.event(*cluster_, event.arrival);
  rendezvous_.Expire(before.steady);
  if (!waiting_) cluster_->Tick(before);
  const absl::Status status = Flush(cluster_->TakeOutbox(), before);
  if (before.steady - last_shown_ >= options_.tick) {
    last_shown_ = before.steady;
    board_.ShowHeld(cluster_->NamesOfHeld());
    if (metrics_) {
      metrics_->Tick(cluster_->workers(), before.wall);
      metrics_->SetHeldJobs(cluster_->num_held());
    }
  }
  if (status.ok()) return true;
  Log(LogLevel::kError, "state cannot be stored; the coordinator ends",
      {{"error", status.ToString()}});
  absl::MutexLock lock(&mutex_);
  failure_.Update(status);
  stopping_ = true;
  return false;
}

absl::Status Coordinator::Flush(Outbox outbox, Moment now) {
  if (waiting_) {
    const bool deletes = !outbox.changes.deleted_jobs.empty();
    waiting_->Append(std::move(outbox));
    if (!deletes && now.steady - tried_at_ < options_.retry_full_disk) {
      AnswerWithout(waiting_->effects, read_only_);
      return absl::OkStatus();
    }
    outbox = *std::exchange(waiting_, std::nullopt);
  }
  const absl::Status status =
      outbox.changes.empty() ? absl::OkStatus() : store_->Commit(outbox.changes);
  if (absl::IsResourceExhausted(status)) {
    BeginReadOnly(status, now);
    AnswerWithout(outbox.effects, read_only_);
    waiting_ = std::move(outbox);
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(status);
  EndReadOnly(now);
  Show(outbox);
  return absl::OkStatus();
}

void Coordinator::BeginReadOnly(const absl::Status& full, Moment now) {
  tried_at_ = now.steady;
  if (!read_only_.ok()) return;
  read_only_since_ = now.steady;
  read_only_ = absl::ResourceExhaustedError(
      absl::StrCat("the coordinator is read-only: ", full.message(),
                   "; running jobs train on, and what was asked is done once there is room"));
  Log(LogLevel::kError, "the coordinator is read-only until its disk has room",
      {{"error", std::string(full.message())}});
  cluster_->SetReadOnly(read_only_);
  if (metrics_) metrics_->SetReadOnly(true);
  absl::MutexLock lock(&mutex_);
  takes_reports_ = false;
}

void Coordinator::EndReadOnly(Moment now) {
  if (read_only_.ok()) return;
  const absl::Duration lasted = now.steady - read_only_since_;
  Log(LogLevel::kInfo, "the disk has room again; the coordinator goes on",
      {{"seconds", absl::StrCat(absl::ToInt64Seconds(lasted))}});
  read_only_ = absl::OkStatus();
  cluster_->SetReadOnly(read_only_);
  // Nothing was decided by time meanwhile.
  cluster_->ResumeAfterStall(lasted, now);
  if (metrics_) metrics_->SetReadOnly(false);
  absl::MutexLock lock(&mutex_);
  takes_reports_ = true;
}

void Coordinator::Show(const Outbox& outbox) {
  if (metrics_) metrics_->Drop(outbox);
  for (const std::string& id : outbox.removed) board_.Remove(id);
  for (const JobView& job : outbox.published) board_.Publish(job);
  if (metrics_) metrics_->Record(outbox, now().wall);
  if (!outbox.effects.empty()) TAKT_FAILPOINT("job.before_effects");
  for (const Effect& effect : outbox.effects) {
    CarryOut(effect, targets_);
    TAKT_FAILPOINT("job.between_effects");
  }
  FlushSessions(outbox.effects);
  if (options_.on_checkpoint) std::ranges::for_each(outbox.checkpoints, options_.on_checkpoint);
}

void Coordinator::PlanFor(const MakePlan& wanted) {
  const auto done = [this, id = wanted.job_id,
                     generation = wanted.generation](absl::StatusOr<plan::Plan> made) {
    auto plan = std::make_shared<absl::StatusOr<plan::Plan>>(std::move(made));
    Post([id, generation, plan](Cluster& cluster, Moment now) {
      cluster.Planned(id, generation, std::move(*plan), now);
    });
  };
  absl::MutexLock lock(&mutex_);
  plans_.push_back({wanted.spec, wanted.options, done});
}

void Coordinator::Plan() {
  pthread_setname_np(pthread_self(), "takt-plan");
  while (true) {
    WantedPlan wanted;
    {
      absl::MutexLock lock(&mutex_);
      const auto some = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stopping_ || !plans_.empty() || !asked_plans_.empty();
      };
      mutex_.Await(absl::Condition(&some));
      if (stopping_) return;
      std::deque<WantedPlan>& next = plans_.empty() ? asked_plans_ : plans_;
      wanted = std::move(next.front());
      next.pop_front();
    }
    wanted.options.profile = ReadProfile();
    wanted.done(options_.make_plan(wanted.spec, wanted.options));
  }
}

void Coordinator::PlanAgain() {
  pthread_setname_np(pthread_self(), "takt-replan");
  while (true) {
    Replan wanted;
    {
      absl::MutexLock lock(&mutex_);
      const auto some = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stopping_ || !replans_.empty();
      };
      mutex_.Await(absl::Condition(&some));
      if (stopping_) return;
      wanted = std::move(replans_.front());
      replans_.pop_front();
    }
    auto offer = std::make_shared<absl::StatusOr<ReplanOffer>>(OfferFor(wanted));
    Post([id = wanted.job_id, generation = wanted.generation, offer](Cluster& cluster, Moment now) {
      cluster.Replanned(id, generation, std::move(*offer), now);
    });
  }
}

absl::StatusOr<ReplanOffer> Coordinator::OfferFor(const Replan& wanted) const {
  ReplanOffer offer{.present_seconds = wanted.present_seconds};
  if (wanted.present != nullptr) {
    ASSIGN_OR_RETURN(offer.present_seconds,
                     plan::PredictStep(wanted.spec, wanted.options, *wanted.present));
  }
  const auto& make_plan =
      options_.make_plan_beside_jobs ? options_.make_plan_beside_jobs : options_.make_plan;
  ASSIGN_OR_RETURN(offer.plan, make_plan(wanted.spec, wanted.options));
  return offer;
}

}  // namespace takt::job
