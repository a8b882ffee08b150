// SPDX-License-Identifier: Apache-2.0
// This file has the checkpoints of a Job, from the first rank's report until one worker has made
// them visible.
#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/checkpoint/hash.h"
#include "common/checkpoint/manifest.h"
#include "common/config/job_file.h"
#include "common/config/job_spec_serde.h"
#include "coordinator/job/job.h"
#include "coordinator/job/saving.h"
#include "takt/v1/job_spec.pb.h"

namespace takt::job {

using membership::Worker;

namespace {

std::string HashOf(const store::PlanSummary& plan) {
  std::string text = absl::StrCat(plan.schedule, " ", plan.mesh.pp_size, "x", plan.mesh.dp_size,
                                  mesh::OtherAxes(plan.mesh));
  for (const mesh::Stage& stage : plan.partition) {
    absl::StrAppend(&text, " ", stage.pp_rank.value(), ":", stage.first_layer.value(), "-",
                    stage.last_layer.value());
  }
  for (const int end : plan.vocabulary_ends) absl::StrAppend(&text, " v", end);
  return checkpoint::HashOf(std::as_bytes(std::span(text)));
}

// The manifest is the same however often it is made, so a worker that has written it before
// recognizes it.
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

void Job::AdvanceCheckpoints(Moment now) {
  using Kind = SavingState::Kind;
  const auto over = [&](const std::optional<absl::Duration>& since, absl::Duration grace) {
    return since && now.steady - *since >= grace;
  };
  const bool gave_up = record_.stop && over(run_->stop_since, context_.decide.stop_grace);
  const bool told_all = gave_up || over(run_->finish_since, context_.decide.reports_grace);
  while (true) {
    const SavingState state = JudgeOldest(record_.saving, run_->ranks, gave_up);
    run_->saving = state.reason;
    if (state.kind == Kind::kFailed) {
      SettleCheckpoint(state.reason, now);
    } else if (state.kind != Kind::kComplete || AdvanceCommit(told_all, now)) {
      return;
    }
  }
}

bool Job::AdvanceCommit(bool told_all, Moment now) {
  const store::OpenCheckpoint& open = record_.saving.open.front();
  CollectSteps(/*rest=*/false, now);
  if (!run_->commit) {
    absl::StatusOr<std::string> manifest = MakeManifest(record_, spec_, open);
    if (!manifest.ok()) {
      SettleCheckpoint(std::string(manifest.status().message()), now);
      return false;
    }
    run_->commit = JobRun::Commit{.since = now.steady, .manifest = *std::move(manifest)};
  }
  if (now.steady - run_->commit->since >= context_.commit_timeout) {
    SettleCheckpoint(absl::StrCat("no worker made it visible within ",
                                  absl::FormatDuration(context_.commit_timeout)),
                     now);
    return false;
  }
  // No checkpoint is visible before its steps are. After a restart of the coordinator the last part
  // may be told by one rank before another one has told its steps again.
  if (open.step > run_->steps.last_taken()) {
    if (!told_all) return true;
    SettleCheckpoint("its ranks ended before all had reported its steps", now);
    return false;
  }
  const Worker* const worker = ChooseCommitter(now);
  if (worker == nullptr || worker->session == run_->commit->asked) return true;
  run_->commit->asked = worker->session;
  SendCommit(*worker, open, run_->commit->manifest);
  return true;
}

void Job::SendCommit(const Worker& worker, const store::OpenCheckpoint& open,
                     const std::string& manifest) {
  context_.workers->Send(worker.hello.worker,
                         control::CommitCheckpoint{.key = key(),
                                                   .step = open.step,
                                                   .directory = spec_.checkpoint->directory,
                                                   .keep = spec_.checkpoint->keep,
                                                   .manifest = manifest,
                                                   .resumed = record_.resumed_step,
                                                   .job_id = record_.id,
                                                   .epoch = epoch()});
}

// One worker at a time is asked to commit a checkpoint. Another one is asked only when that one is
// lost, whatever this coordinator has forgotten by a restart.
const Worker* Job::ChooseCommitter(Moment now) {
  store::OpenCheckpoint& open = record_.saving.open.front();
  if (!open.committer.empty()) {
    const Worker* const asked =
        context_.workers->FindAttached(open.committer, open.committer_incarnation);
    if (asked != nullptr || CommitterMayReturn(open, now)) return asked;
  }
  const Worker* const chosen = FindCommitter();
  if (chosen == nullptr) return nullptr;
  open.committer = chosen->hello.worker;
  open.committer_incarnation = chosen->hello.incarnation;
  changed_ = true;
  return chosen;
}

// A worker that is away is still at it. After a restart of the coordinator, workers that held no
// rank are not known, or, if they are drained, by their names alone. They come back within
// return_grace.
bool Job::CommitterMayReturn(const store::OpenCheckpoint& open, Moment now) const {
  const Worker* const known = context_.workers->members().Find(open.committer);
  if (known == nullptr || known->hello.incarnation.empty())
    return now.steady - run_->since < context_.return_grace;
  return known->away && known->hello.incarnation == open.committer_incarnation;
}

// Returns the worker of rank 0, or of the next rank, or any other that is attached: all of them see
// the directory.
const Worker* Job::FindCommitter() const {
  const WorkerTable& workers = *context_.workers;
  for (const RankRun& rank : run_->ranks) {
    const Worker* const worker = workers.FindAttached(rank.bound.worker, rank.bound.incarnation);
    if (worker != nullptr) return worker;
  }
  const auto attached = std::ranges::find_if(
      workers.workers(), [](const auto& entry) { return entry.second.attached(); });
  return attached == workers.workers().end() ? nullptr : &attached->second;
}

// Asks for the removal of what was written of a checkpoint that failed. If a worker was asked to
// make it visible, only that one removes it, once it has given up. The answer changes nothing. What
// is left behind is removed when the next generation begins.
void Job::SendRemoval(const store::OpenCheckpoint& open) {
  const Worker* const worker =
      open.committer.empty()
          ? FindCommitter()
          : context_.workers->FindAttached(open.committer, open.committer_incarnation);
  if (worker != nullptr) SendCommit(*worker, open, /*manifest=*/"");
}

void Job::Committed(SessionId id, const control::CheckpointCommitted& answer, Moment now) {
  // A worker that was asked before may answer late. The one that was asked last will answer too.
  if (!run_ || !run_->commit || run_->commit->asked != id) return;
  if (record_.saving.open.front().step != answer.step) return;
  SettleCheckpoint(answer.error, now);
}

void Job::SettleCheckpoint(const std::string& error, Moment now) {
  const store::OpenCheckpoint open = SettleOldest(record_.saving);
  run_->commit.reset();
  changed_ = true;
  context_.outbox->checkpoints.push_back({.job = record_.name,
                                          .failed = !error.empty(),
                                          .snapshot_seconds = open.snapshot_seconds,
                                          .write_seconds = open.write_seconds});
  if (!error.empty()) {
    SendRemoval(open);
    run_->failed_save =
        absl::StrCat("the checkpoint of step ", open.step.value(), " failed: ", error);
    AddNotice(run_->failed_save);
    return;
  }
  record_.checkpoint = {.step = open.step, .time = now.wall};
  Log(LogLevel::kInfo, "checkpoint",
      {{"job", record_.name},
       {"generation", absl::StrCat(record_.generation.value())},
       {"step", absl::StrCat(open.step.value())},
       {"snapshot_seconds", absl::StrCat(open.snapshot_seconds)},
       {"write_seconds", absl::StrCat(open.write_seconds)}});
}

}  // namespace takt::job
