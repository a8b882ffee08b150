// SPDX-License-Identifier: Apache-2.0
#include "worker/session/curves.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "worker/session/rooted_directory.h"
#include "worker/tensorboard/event_log.h"

namespace takt::session {
namespace {

constexpr char kField[] = "logging.tensorboard";

}  // namespace

absl::StatusOr<std::unique_ptr<Curves>> Curves::Open(const control::Assignment& assignment,
                                                     StepId resumed, const std::string& root,
                                                     worker_checkpoint::FileSystem& files,
                                                     const Clock& clock) {
  const config::JobSpec& job = assignment.job;
  if (job.tensorboard.empty() || assignment.rank != Rank(0)) return std::unique_ptr<Curves>();
  const auto refuse = [&](const absl::Status& status) {
    return UnwritableDirectory(kField, job.tensorboard, status,
                               "name another one under the checkpoint root, or null for none");
  };
  absl::StatusOr<std::string> directory =
      MakeDirectoryUnderRoot(files, kField, root, job.tensorboard);
  if (!FieldErrorsOf(directory.status()).empty()) return directory.status();
  if (!directory.ok()) return refuse(directory.status());
  absl::StatusOr<std::unique_ptr<tensorboard::EventLog>> log = tensorboard::EventLog::Create(
      {.directory = *std::move(directory),
       .name = absl::StrCat(assignment.key.job, ".", assignment.key.generation.value()),
       .first_step = StepId(resumed.value() + 1),
       .now = clock.Now()});
  if (!log.ok()) return refuse(log.status());
  Log(LogLevel::kInfo, "TensorBoard curves",
      {{"job", assignment.key.job}, {"file", (*log)->path()}});
  return std::unique_ptr<Curves>(new Curves(*std::move(log), StepId(job.steps), clock));
}

Curves::Curves(std::unique_ptr<tensorboard::EventLog> log, StepId last_step, const Clock& clock)
    : log_(std::move(log)), last_step_(last_step), clock_(clock) {}

Curves::~Curves() = default;

void Curves::Add(const control::RankStepReport& report) {
  const bool taken = sampler_.Takes(report.step, report.step_seconds);
  if (!taken && !report.validation_loss.has_value() && report.step != last_step_) return;
  std::vector<tensorboard::Scalar> scalars = {{"train/loss", report.loss},
                                              {"train/grad_norm", report.grad_norm},
                                              {"train/learning_rate", report.learning_rate},
                                              {"train/step_time_seconds", report.step_seconds}};
  if (report.step_seconds > 0) {
    scalars.push_back(
        {"train/tokens_per_second", static_cast<double>(report.tokens) / report.step_seconds});
  }
  if (report.validation_loss.has_value())
    scalars.push_back({"validation/loss", *report.validation_loss});
  log_->Add(report.step, clock_.Now(), scalars);
}

}  // namespace takt::session
