// SPDX-License-Identifier: Apache-2.0
#include "cli/model/evaluate_on_cluster.h"

#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/base/exit_code.h"
#include "cli/base/report.h"
#include "cli/client/client.h"
#include "cli/client/connect.h"
#include "cli/client/local_address.h"
#include "cli/job/follow.h"
#include "cli/job/job_input.h"
#include "common/base/status.h"
#include "common/checkpoint/layout.h"
#include "common/data/data_root.h"

namespace takt::cli {
namespace {

// Changes the file before it is checked: its number of steps and its optimizer do not matter here,
// and what is scored may be given on the command line.
JobInput InputOf(const ClusterEvaluation& options) {
  JobInput input{.path = options.job, .set = {"steps=1", "optimizer={sgd: {learning_rate: 0}}"}};
  if (!options.data.empty()) {
    input.set.push_back(absl::StrCat("data.validation.path=", options.data));
    input.set.push_back(absl::StrCat("data.validation.format=", options.format));
  }
  if (options.batches > 0)
    input.set.push_back(absl::StrCat("data.validation.batches=", options.batches));
  return input;
}

// Returns the directory of the weights, as EvaluateSpec::weights. The newest checkpoint is the one
// that the coordinator knows, if it knows the job, else the one that the directory itself names.
absl::StatusOr<std::string> WeightsOf(Client& client, const v1::JobSpec& spec, std::int64_t step) {
  const std::string& directory = spec.checkpoint().directory();
  if (directory.empty()) {
    if (step == 0 && spec.model().has_init_from()) return std::string();
    return InvalidField({.field = "checkpoint.directory",
                         .rule = "is missing, so the job has no weights to evaluate",
                         .fix = "name the directory of its checkpoints, or model.init_from"});
  }
  if (step == 0) {
    const absl::StatusOr<v1::Job> job = client.GetJob(spec.name());
    if (!job.ok() && !absl::IsNotFound(job.status())) return job.status();
    if (job.ok() && job->spec().checkpoint().directory() == directory)
      step = job->checkpoint().step();
  }
  return absl::StrCat(
      directory, "/",
      step == 0 ? checkpoint::kLatestLink : checkpoint::StepDirectoryName(StepId(step)));
}

std::string DirectoryOf(const v1::JobSpec& job) { return job.checkpoint().directory(); }

// Returns what a user can change about the weights: the option, or the field of the file.
FieldError SourceOfWeights(const v1::JobSpec& job, std::int64_t step) {
  if (step > 0) return {.field = "--step", .value = absl::StrCat(step)};
  return {.field = "checkpoint.directory", .value = DirectoryOf(job)};
}

absl::Status NoSuchCheckpoint(const v1::JobSpec& job, std::int64_t step) {
  FieldError error = SourceOfWeights(job, step);
  error.rule = step > 0 ? absl::StrCat(DirectoryOf(job), " has no checkpoint of this step")
                        : "has no checkpoint";
  error.fix = step > 0
                  ? absl::StrCat("name one that takt checkpoint list ", DirectoryOf(job), " shows")
                  : "train the job until it has written one, or name another directory";
  const absl::Status invalid = InvalidField(std::move(error));
  absl::Status not_found = absl::NotFoundError(invalid.message());
  not_found.SetPayload(kErrorDetailUrl, *invalid.GetPayload(kErrorDetailUrl));
  return not_found;
}

// Returns the error of the job that evaluated. Ranks name the weights as model.init_from, which the
// file does not say.
absl::Status OfWeights(const absl::Status& status, const v1::JobSpec& job, std::int64_t step) {
  const std::vector<FieldError> errors = FieldErrorsOf(status);
  if (DirectoryOf(job).empty() || errors.size() != 1 || errors[0].field != "model.init_from")
    return status;
  if (errors[0].rule == data::kMustExist) return NoSuchCheckpoint(job, step);
  FieldError error = SourceOfWeights(job, step);
  error.rule = absl::StrCat(errors[0].value, " ", errors[0].rule);
  error.fix = errors[0].fix;
  return InvalidField(std::move(error));
}

// On this machine the checkpoint can be seen before a job waits for workers.
bool IsMissingHere(const Context& context, const std::string& weights) {
  const absl::StatusOr<std::string> address = CoordinatorAddress(context);
  if (weights.empty() || !address.ok() || !IsOfLocalCluster(*address)) return false;
  std::error_code error;
  return std::filesystem::status(weights, error).type() == std::filesystem::file_type::not_found;
}

// Says what the job waits for, each time that this changes.
class Waits {
 public:
  explicit Waits(const Context& context) : context_(context) {}
  void Show(const v1::Job& job) {
    if (job.state() != v1::JOB_STATE_QUEUED || job.reason() == said_) return;
    said_ = job.reason();
    Say(context_, absl::StrCat(job.name(), " waits: ", said_));
  }

 private:
  const Context& context_;
  std::string said_;
};

// Returns the step of the job, which has ended.
absl::StatusOr<v1::StepReport> Follow(const Context& context, Client& client,
                                      const std::string& name) {
  std::optional<v1::StepReport> result;
  Waits waits(context);
  const FollowOptions options = {.job = name,
                                 .on_job = [&](const v1::Job& now) { waits.Show(now); },
                                 .on_step =
                                     [&](const v1::StepReport& step) {
                                       result = step;
                                       return true;
                                     },
                                 .say = [&](std::string_view line) { Say(context, line); }};
  const absl::StatusOr<v1::Job> job = FollowUntilInterrupted(client, options);
  if (absl::IsUnknown(job.status())) {
    RETURN_IF_ERROR(client.CancelJob(name).status());
    return absl::CancelledError(absl::StrCat("interrupted; ", name, " is cancelled"));
  }
  RETURN_IF_ERROR(job.status());
  RETURN_IF_ERROR(ErrorOf(*job));
  if (result.has_value() && result->has_validation_loss()) return *std::move(result);
  return absl::InternalError(absl::StrCat(name, " ended without a score; see: takt logs ", name));
}

}  // namespace

v1::JobSpec EvaluationOf(const v1::JobSpec& job, const std::string& weights,
                         std::string_view suffix) {
  v1::JobSpec spec = job;
  constexpr std::size_t kKept = 40;  // of at most 63 characters
  spec.set_name(absl::StrCat(job.name().substr(0, kKept), "-eval-", std::string(suffix)));
  spec.mutable_evaluate()->set_weights(weights);
  spec.set_steps(1);
  spec.set_priority(0);  // it waits for workers that nobody else wants
  spec.clear_checkpoint();
  spec.clear_logging();
  spec.clear_replan();
  spec.clear_elastic();
  spec.mutable_parallelism()->clear_data_leaves();
  // Nothing is updated, so one bucket of gradients is more than enough, and the optimizer is the
  // one that keeps nothing beside weights.
  spec.clear_optimizer();
  v1::SgdSpec& sgd = *spec.mutable_optimizer()->mutable_sgd();
  sgd.set_learning_rate(0);
  sgd.set_momentum(0);
  sgd.set_clip_norm(0);
  return spec;
}

absl::StatusOr<Score> EvaluateOnCluster(const Context& context, const ClusterEvaluation& options) {
  ASSIGN_OR_RETURN(const PreparedJob input, PrepareJobToSubmit(context, InputOf(options)));
  ASSIGN_OR_RETURN(const std::unique_ptr<Client> client, ConnectToCoordinator(context));
  ASSIGN_OR_RETURN(const std::string weights, WeightsOf(*client, input.spec, options.step));
  if (IsMissingHere(context, weights))
    return input.locate(NoSuchCheckpoint(input.spec, options.step));
  const v1::JobSpec spec =
      EvaluationOf(input.spec, weights, absl::StrCat(absl::Hex(absl::ToUnixMillis(absl::Now()))));
  const absl::StatusOr<v1::Job> submitted = client->SubmitJob(spec, /*validate_only=*/false);
  if (!submitted.ok()) return input.locate(submitted.status());
  Say(context, absl::StrCat("submitted ", spec.name()));
  const absl::StatusOr<v1::StepReport> step = Follow(context, *client, spec.name());
  if (!step.ok()) return input.locate(OfWeights(step.status(), input.spec, options.step));
  if (const absl::Status deleted = client->DeleteJob(spec.name()); !deleted.ok())
    Say(context, absl::StrCat("warning: ", spec.name(), " stays: ", deleted.message()));
  Score score{
      .loss = step->validation_loss(), .tokens = step->tokens(), .context = spec.model().context()};
  if (step->has_validation_bytes_per_token()) {
    score.bytes_per_token = step->validation_bytes_per_token();
  } else if (spec.data().validation().format() == v1::DATA_FORMAT_BYTES) {
    score.bytes_per_token = 1;  // also of workers that do not tell it
  }
  if (score.context > 0) {
    const int batches =
        spec.data().validation().has_batches() ? spec.data().validation().batches() : 1;
    score.windows = std::int64_t{batches} * spec.batch().global();
  }
  return score;
}

}  // namespace takt::cli
