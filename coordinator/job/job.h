// SPDX-License-Identifier: Apache-2.0
// A job from its submission to its end. Its record is stored and shown. Its run is what is known of
// the ranks of the generation that trains. decide.h has the state machine.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/control/attachment.h"
#include "common/control/reports.h"
#include "common/profile/learn.h"
#include "common/profile/profile.h"
#include "coordinator/job/decide.h"
#include "coordinator/job/outbox.h"
#include "coordinator/job/recent_clips.h"
#include "coordinator/job/worker_table.h"
#include "coordinator/store/record.h"

namespace takt::job {

// All jobs of one coordinator share this.
struct JobContext {
  DecideOptions decide;
  ReplanOptions replan;
  absl::Duration commit_timeout = timeouts::kCommitTimeout;
  absl::Duration return_grace = timeouts::kReturnGrace;
  std::function<std::string(int)> random_bytes;                           // so many of them
  std::function<std::shared_ptr<const profile::Profile>()> read_profile;  // never null
  // Returns the ids of all jobs that have checkpoints and have not ended.
  std::function<std::vector<std::string>()> saving_jobs;
  std::int64_t epoch = 0;  // of this coordinator
  // The times of faults are of this clock.
  WaitClock wait_clock{Moment()};
  WorkerTable* workers = nullptr;  // borrowed, as is the outbox
  Outbox* outbox = nullptr;
};

// One thread.
class Job final {
 public:
  // context: borrowed. A job that is submitted enters the queue by Enqueue. One that comes from the
  // store is continued by Restore, and one that comes from its workers by TakeOver.
  Job(const JobContext* context, store::JobRecord record)
      : context_(*context), record_(std::move(record)) {}

  void Enqueue(config::JobSpec spec, Moment now);
  // The job's ranks train already, under a coordinator that is gone (JobRecord::adoption).
  void TakeOver(config::JobSpec spec, Moment now);
  // The job continues as the coordinator that stored it left it. Nothing happens if it has ended.
  // was_planned: that coordinator ended while it made this job's plan.
  void Restore(bool was_planned, Moment now);

  // Requests of users. Errors: kFailedPrecondition (the job's state does not allow it).
  absl::Status Cancel(Moment now);
  absl::Status Pause(Moment now);
  absl::Status Resume(Moment now);
  // Ends the run at a step boundary, so that its workers are free and the job goes back to the
  // queue. Nothing happens if the job is on its way there, or has no checkpoints.
  void Requeue(const std::string& reason, Moment now);

  // Returns the job as its next generation is planned: once it has begun, sizes with an elastic
  // range are open.
  config::JobSpec NextSpec() const;
  // Returns how many more workers the job could use while it trains, to grow or in place of a
  // straggler; 0: none.
  int Growth() const;
  // These workers are idle, and no job that waits needs them. The job may grow by them.
  void SetSpare(const std::vector<std::string>& workers, Moment now);

  // Says what a QUEUED job waits for.
  void SetReason(std::string reason);
  config::DeviceKind Device() const;
  void BeginPlanning(const std::vector<std::string>& workers, Moment now);
  void Planned(absl::StatusOr<plan::Plan> plan, Moment now);
  // Takes the result of the effect Replan.
  void Replanned(absl::StatusOr<ReplanOffer> offer, Moment now);

  // Messages of workers. `worker` is attached, or was until now. A message changes nothing unless
  // it comes from the process that holds a rank of this run.
  void Reattach(const membership::Worker& worker);
  void Heartbeat(const membership::Worker& worker, const control::RankStatus& status, Moment now);
  void Update(const membership::Worker& worker, const control::JobUpdate& update, Moment now);
  void Leave(const membership::Worker& worker, const std::string& reason, Moment now);
  // The worker is lost, or away. Return: it is heard again on the same stream.
  void Lose(const membership::Loss& loss);
  void Return(const membership::Worker& worker);
  // Returns two workers whose ranks are not silent, or fewer if there are not two. With two, at
  // least one differs from any given silent worker.
  std::vector<std::string> Witnesses() const;
  // Returns what the other ranks show about this worker, which is silent. Without it they cannot
  // get further than about a step. witnesses: as Witnesses returns them, which looks at all ranks.
  membership::Voucher Vouch(const membership::Worker& silent,
                            const std::vector<std::string>& witnesses) const;
  bool HoldsRank(const membership::Worker& worker, Rank rank) const;
  // Returns whether the worker, which has come back, holds the rank. If it was lost after the rank
  // had ended, it holds it again.
  bool TakeBack(const membership::Worker& worker, Rank rank);
  void Report(const std::string& worker, const std::string& incarnation,
              const control::RankStepReport& report, const std::shared_ptr<BulkSession>& session);
  void ReportCheckpoint(const std::string& worker, const std::string& incarnation,
                        const control::CheckpointReport& report,
                        const std::shared_ptr<BulkSession>& session);
  void Committed(SessionId id, const control::CheckpointCommitted& answer, Moment now);
  // The line is dropped unless its worker has held a rank of the job.
  void AddLog(const control::LogLine& line);

  // Says that something may have happened to the job, so that the next tick checks it.
  void HasNews() { news_ = true; }
  bool TakeNews() { return std::exchange(news_, false); }
  // Applies what follows from the events so far and from the time. batch: step reports and log
  // lines have waited long enough for others.
  void Tick(bool batch, Moment now);
  // True while reports or log lines wait for their batch.
  bool HasWaitingBatch() const;
  // Puts into the outbox what has changed since the last call.
  void Flush();
  // The same for a job that is about to be deleted.
  void FlushDeleted();

  const store::JobRecord& record() const { return record_; }
  const config::JobSpec& spec() const { return spec_; }
  bool has_run() const { return run_.has_value(); }
  // Returns the workers that hold copies of its state in memory, while it waits for its next
  // generation to train.
  std::set<std::string> CopyHolders() const;
  // Returns whether the job's state is in the memory of those workers and nowhere else. After an
  // hour it returns false, and they may serve other jobs.
  bool HasOnlyCopies(Moment now) const;
  // The workers that it has evicted. It takes them again only if there is no other.
  const std::set<std::string>& evicted_workers() const { return evicted_workers_; }
  // A job whose plan may have ended the last coordinator is not planned before this time.
  Moment plans_again() const { return plans_again_; }
  // True if its ranks halt, and the next generation gets their workers.
  bool keeps_workers() const { return run_ && run_->next_plan; }
  control::JobKey key() const { return {record_.name, record_.generation}; }
  // Rises with each coordinator that commands this job.
  std::int64_t epoch() const { return record_.epoch_base + context_.epoch; }

 private:
  // job.cc
  void SetState(store::JobState state, std::string reason, Moment now);
  void EndRecord(Moment now);
  void AddNotice(std::string notice);
  bool StopsForGood() const;
  void RequestHalt(store::JobHalt halt, Moment now);
  void RestoreRun(Moment now);
  void BeginRun(mesh::Mesh mesh, RankPhase phase, Moment now);
  void RaiseGeneration();

  control::Halt HaltOf(const store::JobHalt& halt) const {
    return {.key = key(), .reason = halt.reason, .in_memory = halt.in_memory};
  }

  // job_run.cc
  // Returns what a plan for these workers is made with, and what the job's steps have shown.
  plan::PlanOptions OptionsFor(const config::JobSpec& spec, const placement::Gang& gang) const;
  void Launch(plan::Plan plan, const placement::Gang& gang, Moment now);
  // Keeps what the plan chose that changes bits. Returns it for people, e.g. "; data: auto is 2";
  // empty: the job names all of it.
  std::string FixBits(const plan::Plan& plan);
  void Describe(const plan::Plan& plan, const placement::Gang& ranks);
  control::MemoryCopies Copies(const plan::Plan& plan, const placement::Gang& ranks,
                               const profile::RankPlace& place);
  void Advance(Moment now);
  void Apply(const Decision& decision, Moment now);
  void StartRun();
  void StopRun(store::JobStop stop, Moment now);
  void EndRun(const Decision& decision, Moment now);
  void SettleFault(const Decision& decision, Moment now);
  void CollectSteps(bool rest, Moment now);
  // Sends the command to the workers whose ranks have not ended.
  template <class Command>
  void SendToRanks(const Command& command);

  // job_replan.cc
  void ConsiderReplanning(Moment now);
  // Returns the workers that have been spare for long enough.
  std::set<std::string> LongSpare(Moment now) const;
  // The same for a job that may grow, else none.
  std::set<std::string> SpareToGrow(Moment now) const;
  ReplanFacts FactsForReplanning(const profile::Profile* profile, Moment now) const;
  void SwitchTo(const std::string& reason, Moment now);
  void AskPlanner(std::shared_ptr<const profile::Profile> profile, Moment now);
  // Begins the next generation with this plan on the workers of the last one, and on those that are
  // held for it. Returns false if too few of them may be given a rank.
  bool GoOnWith(plan::Plan plan, const std::vector<std::string>& workers, std::string reason,
                Moment now);

  // True if there is a straggler, and another worker may take its place.
  bool WantsToEvict() const;
  void ConsiderEviction(Moment now);

  // job_reports.cc
  // Returns the rank that this process holds, null if it holds none or not this one.
  RankRun* FindRank(Rank rank, const std::string& worker, const std::string& incarnation);
  void LoseRank(RankRun& rank, const std::string& reason);

  // job_checkpoints.cc
  void AdvanceCheckpoints(Moment now);
  // Returns false if the checkpoint has failed. told_all: no rank reports any more steps.
  bool AdvanceCommit(bool told_all, Moment now);
  // manifest: empty if the checkpoint has failed.
  void SendCommit(const membership::Worker& worker, const store::OpenCheckpoint& open,
                  const std::string& manifest);
  void SendRemoval(const store::OpenCheckpoint& open);
  void SettleCheckpoint(const std::string& error, Moment now);
  // Returns null if there is no such worker now.
  const membership::Worker* ChooseCommitter(Moment now);
  bool CommitterMayReturn(const store::OpenCheckpoint& open, Moment now) const;
  const membership::Worker* FindCommitter() const;

  const JobContext& context_;
  store::JobRecord record_;
  config::JobSpec spec_;
  std::optional<JobRun> run_;  // STARTING, RUNNING, RECOVERING
  std::set<std::string> evicted_workers_;
  // The number of pp ranks and the one that a straggler was evicted from. If the next worker is as
  // slow there, the plan is wrong about the stage.
  std::set<std::pair<int, PpRank>> evicted_from_;
  std::set<std::string> past_workers_;  // those that have held its ranks: they may log for it
  std::vector<store::LogRecord> waiting_logs_;
  RecentClips clips_;
  double expert_imbalance_ = 0;  // as its ranks report it of late; 0: not known
  absl::Duration tried_since_;   // JobRun::tried_since
  Moment plans_again_{.wall = absl::InfinitePast(), .steady = -absl::InfiniteDuration()};
  bool news_ = true;      // see HasNews
  bool changed_ = false;  // the record is to be stored and shown
  bool grown_ = false;    // the job is to be shown: it has new steps, log lines or a passing reason
};

}  // namespace takt::job
