// SPDX-License-Identifier: Apache-2.0
// Cluster: checkpoints, from the first rank's report until one worker has made them visible.
#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/checkpoint/hash.h"
#include "common/checkpoint/manifest.h"
#include "common/config/job_file.h"
#include "common/config/job_spec_serde.h"
#include "coordinator/job/cluster.h"
#include "coordinator/job/saving.h"
#include "takt/v1/job_spec.pb.h"

namespace takt::job {

using membership::Worker;

namespace {

std::string HashOf(const store::PlanSummary& plan) {
  std::string text = absl::StrCat(plan.schedule, " ", plan.mesh.pp_size, "x", plan.mesh.dp_size);
  for (const mesh::Stage& stage : plan.partition) {
    absl::StrAppend(&text, " ", stage.pp_rank.value(), ":", stage.first_layer.value(), "-",
                    stage.last_layer.value());
  }
  return checkpoint::HashOf(std::as_bytes(std::span(text)));
}

// The same however often it is made: a worker that has written it before knows it again.
absl::StatusOr<std::string> MakeManifest(const store::JobRecord& record,
                                         const config::JobSpec& spec,
                                         const store::OpenCheckpoint& open) {
  return checkpoint::FormatManifest({.job = record.name,
                                     .generation = record.generation,
                                     .step = open.step,
                                     .windows = open.step.value() * spec.global_batch,
                                     .seed = spec.seed,
                                     .plan_hash = HashOf(record.plan),
                                     .job_spec = config::FormatJobFile(config::ToProto(spec)),
                                     .files = open.files});
}

}  // namespace

void Cluster::ReportCheckpoint(const std::string& worker, const std::string& incarnation,
                               const control::CheckpointReport& report,
                               const std::shared_ptr<BulkSession>& session) {
  const Worker* const found = members_.Find(worker);
  const bool current = found != nullptr && found->hello.incarnation == incarnation;
  if (!current || FindRank(report.key, report.rank, *found) == nullptr) return;  // stale: refused
  JobEntry& job = *FindRunning(report.key);
  if (!job.steps->AddOther(report.rank, report.sequence, report.step)) return;
  if (AddReport(job.record.saving, report)) Touch(job);
  job.bulk[report.rank] = session;
  job.acknowledge = true;
}

void Cluster::AdvanceCheckpoints(JobEntry& job, Moment now) {
  using Kind = SavingState::Kind;
  JobRun& run = *job.run;
  const bool gave_up =
      run.stop && now.steady - run.stop_since.value_or(now.steady) >= options_.decide.stop_grace;
  while (true) {
    const SavingState state = JudgeOldest(job.record.saving, run.ranks, gave_up);
    run.saving = state.reason;
    if (state.kind == Kind::kFailed) {
      SettleCheckpoint(job, state.reason, now);
    } else if (state.kind != Kind::kComplete || AdvanceCommit(job, now)) {
      return;
    }
  }
}

bool Cluster::AdvanceCommit(JobEntry& job, Moment now) {
  const store::OpenCheckpoint& open = job.record.saving.open.front();
  if (!job.commit) {
    CollectSteps(job, /*rest=*/false, now);  // no checkpoint is visible before its steps are
    absl::StatusOr<std::string> manifest = MakeManifest(job.record, job.spec, open);
    if (!manifest.ok()) {
      SettleCheckpoint(job, std::string(manifest.status().message()), now);
      return false;
    }
    job.commit = Commit{.since = now.steady, .manifest = *std::move(manifest)};
  }
  if (now.steady - job.commit->since >= options_.commit_timeout) {
    SettleCheckpoint(job,
                     absl::StrCat("no worker made it visible within ",
                                  absl::FormatDuration(options_.commit_timeout)),
                     now);
    return false;
  }
  const Worker* const worker = FindCommitter(job);
  if (worker == nullptr || worker->session == job.commit->asked) return true;
  job.commit->asked = worker->session;
  SendCommit(job, open.step, job.commit->manifest);
  return true;
}

void Cluster::SendCommit(const JobEntry& job, StepId step, const std::string& manifest) {
  const Worker* const worker = FindCommitter(job);
  if (worker == nullptr) return;
  SendTo(worker->hello.worker,
         control::CommitCheckpoint{.key = {job.record.name, job.record.generation},
                                   .step = step,
                                   .directory = job.spec.checkpoint->directory,
                                   .keep = job.spec.checkpoint->keep,
                                   .manifest = manifest});
}

// The worker of rank 0, or the next best: all of them see the directory.
const Worker* Cluster::FindCommitter(const JobEntry& job) const {
  for (const RankRun& rank : job.run->ranks) {
    const Worker* const worker = members_.Find(rank.bound.worker);
    const bool there = worker != nullptr && worker->session != SessionId(0) &&
                       worker->hello.incarnation == rank.bound.incarnation;
    if (there) return worker;
  }
  for (const auto& [name, worker] : members_.workers()) {
    if (worker.session != SessionId(0)) return &worker;
  }
  return nullptr;
}

void Cluster::Committed(SessionId id, const control::CheckpointCommitted& answer, Moment now) {
  members_.Heard(id, now);
  JobEntry* const job = FindRunning(answer.key);
  // One that was asked before may answer late: the one that was asked last will, too.
  if (job == nullptr || !job->commit || job->commit->asked != id) return;
  if (job->record.saving.open.front().step != answer.step) return;
  SettleCheckpoint(*job, answer.error, now);
}

void Cluster::SettleCheckpoint(JobEntry& job, const std::string& error, Moment now) {
  const store::OpenCheckpoint open = SettleOldest(job.record.saving);
  job.commit.reset();
  Touch(job);
  outbox_.checkpoints.push_back({.job = job.record.name,
                                 .failed = !error.empty(),
                                 .snapshot_seconds = open.snapshot_seconds,
                                 .write_seconds = open.write_seconds});
  if (!error.empty()) {
    // Nobody waits for the answer: what is left behind goes when the next generation begins.
    SendCommit(job, open.step, /*manifest=*/"");
    AddNotice(job, absl::StrCat("the checkpoint of step ", open.step.value(), " failed: ", error));
    return;
  }
  job.record.checkpoint = {.step = open.step, .time = now.wall};
  job.run->checkpoint = open.step;
  Log(LogLevel::kInfo, "checkpoint",
      {{"job", job.record.name},
       {"generation", absl::StrCat(job.record.generation.value())},
       {"step", absl::StrCat(open.step.value())},
       {"snapshot_seconds", absl::StrCat(open.snapshot_seconds)},
       {"write_seconds", absl::StrCat(open.write_seconds)}});
}

}  // namespace takt::job
