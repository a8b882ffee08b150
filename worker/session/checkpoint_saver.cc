// SPDX-License-Identifier: Apache-2.0
#include "worker/session/checkpoint_saver.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/checkpoint/layout.h"
#include "worker/checkpoint/commit.h"

namespace takt::session {
namespace {

// A save that waits longer than this for the one before is worth a line in the log.
constexpr double kNoticeableSeconds = 0.1;

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointSaver>> CheckpointSaver::Create(
    CheckpointSaverOptions options, std::span<const worker_checkpoint::LayerState> live) {
  ASSIGN_OR_RETURN(worker_checkpoint::Snapshot snapshot,
                   worker_checkpoint::Snapshot::Create(live, options.device));
  return std::unique_ptr<CheckpointSaver>(
      new CheckpointSaver(std::move(options), std::move(snapshot)));
}

CheckpointSaver::CheckpointSaver(CheckpointSaverOptions options,
                                 worker_checkpoint::Snapshot snapshot)
    : options_(std::move(options)), snapshot_(std::move(snapshot)) {}

void CheckpointSaver::Save(StepId step, std::span<const worker_checkpoint::LayerState> live,
                           std::function<void(control::CheckpointReport)> report) {
  const std::int64_t asked = options_.clock->SteadyNanos();
  Finish();
  if (const double waited = SecondsSince(asked); waited > kNoticeableSeconds) {
    Log(LogLevel::kWarning, "training waited for the checkpoint before",
        {{"job", options_.key.job},
         {"step", std::to_string(step.value())},
         {"seconds", absl::StrCat(waited)}});
  }
  const std::int64_t start = options_.clock->SteadyNanos();
  absl::Status taken =
      snapshot_.Take(live, {.threads = options_.threads, .device = options_.device});
  // The other ranks wait for this one even if it could not copy.
  if (options_.complete != nullptr) taken.Update(options_.complete(step, snapshot_));
  control::CheckpointReport part{.key = options_.key,
                                 .rank = options_.rank,
                                 .step = step,
                                 .snapshot_seconds = SecondsSince(start)};
  if (!taken.ok()) {
    part.error = taken.ToString();
    LogEnd(part);
    report(std::move(part));
    return;
  }
  thread_.Add([this, part = std::move(part), report = std::move(report)]() mutable {
    Write(part);
    report(std::move(part));
  });
}

void CheckpointSaver::RemovePending(StepId step) {
  const StepId before = std::exchange(written_, step);
  if (before == StepId(0) || options_.withdraw == nullptr) return;
  const std::string error = absl::StrCat("replaced by the checkpoint of step ", step.value(),
                                         ", because the coordinator was away");
  if (!options_.withdraw(before, error)) return;
  const absl::Status removed = worker_checkpoint::RemoveUnclaimed(
      *options_.files, options_.directory, before, options_.key.job, options_.key.generation);
  Log(LogLevel::kInfo, "pending checkpoint removed",
      {{"job", options_.key.job},
       {"step", std::to_string(before.value())},
       {"error", removed.ok() ? error : removed.ToString()}});
}

void CheckpointSaver::Write(control::CheckpointReport& report) {
  RemovePending(report.step);
  const std::int64_t start = options_.clock->SteadyNanos();
  const std::string partial =
      checkpoint::PartialDirectoryName(report.step, options_.key.job, options_.key.generation);
  auto files = worker_checkpoint::SaveShards(
      *options_.files, {.directory = absl::StrCat(options_.directory, "/", partial),
                        .num_layers = options_.num_layers,
                        .layers = snapshot_.layers(),
                        .texts = options_.texts,
                        .given_up = options_.given_up});
  report.write_seconds = SecondsSince(start);
  if (files.ok()) {
    report.files = *std::move(files);
  } else {
    report.error = files.status().ToString();
  }
  LogEnd(report);
}

void CheckpointSaver::LogEnd(const control::CheckpointReport& report) const {
  const bool ok = report.error.empty();
  Log(ok ? LogLevel::kInfo : LogLevel::kWarning,
      ok ? "checkpoint written" : "checkpoint not written; training goes on",
      {{"job", options_.key.job},
       {"step", std::to_string(report.step.value())},
       {"snapshot_seconds", absl::StrCat(report.snapshot_seconds)},
       {"write_seconds", absl::StrCat(report.write_seconds)},
       {"error", report.error}});
}

}  // namespace takt::session
