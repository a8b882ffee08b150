// SPDX-License-Identifier: Apache-2.0
#include "common/plan/schedule_rules.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/config/job_spec.h"
#include "common/schedule/validator.h"

namespace takt::plan {
namespace {

// Refuses what a schedule without a flush cannot do.
absl::Status CheckWithoutFlush(const CandidateInputs& inputs, const schedule::Schedule& schedule) {
  const config::JobSpec& job = inputs.job;
  const bool each = schedule.updates == schedule::Updates::kEachBackward;
  const auto under = [&](const char* must, const char* why) {
    return absl::StrCat("must be ", must, " under ", schedule.name, ": ", why);
  };
  std::vector<FieldError> errors;
  const config::OptimizerTraits optimizer = config::TraitsOf(job);
  if (optimizer.clip_norm > 0 && job.model.family != model::Family::kEmulated) {
    errors.push_back(
        {.field = absl::StrCat("optimizer.", optimizer.name, ".clip_norm"),
         .value = absl::StrCat(optimizer.clip_norm),
         .rule = under("0", "weights change before the norm of all gradients is known"),
         .fix = "set it to 0, or use a schedule that flushes every step"});
  }
  if (each && inputs.dp_size > 1) {
    errors.push_back(
        {.field = "parallelism.data",
         .value = absl::StrCat(inputs.dp_size),
         .rule = under("1", "a stage applies each gradient without waiting for replicas"),
         .fix = "set it to 1, or use pipedream-2bw"});
  }
  if (each && !inputs.model.layers.back().tied_parameters.empty()) {
    errors.push_back(
        {.field = "model.tied_head",
         .value = "true",
         .rule = under("false",
                       "a stage applies each gradient without waiting for the other "
                       "use of the weights"),
         .fix = "use pipedream-2bw, or tied_head: false, which every family but gpt2 has"});
  }
  const std::optional<model::Mixture>& mixture = job.model.mixture;
  if (each && mixture.has_value() && mixture->scores == model::RouterScores::kSigmoid) {
    errors.push_back(
        {.field = "model.experts.scores",
         .value = "sigmoid",
         .rule = under("softmax", "the bias moves by the rows that experts have in a whole step"),
         .fix = "use softmax, pipedream-2bw, or a schedule that flushes every step"});
  }
  return errors.empty() ? absl::OkStatus() : InvalidFields(std::move(errors));
}

// Refuses to feed errors back where gradients are not one step late.
absl::Status CheckErrorFeedback(const config::JobSpec& job, const schedule::Schedule& schedule) {
  if (job.error_feedback == 0 || job.model.family == model::Family::kEmulated ||
      schedule.updates == schedule::Updates::kDelayed)
    return absl::OkStatus();
  const bool flushes = schedule.updates == schedule::Updates::kFlush;
  // The job has not named the schedule that is looked at.
  const bool chosen = job.parallelism.schedule == "auto";
  return InvalidField(
      {.field = "optimizer.error_feedback",
       .value = absl::StrCat(job.error_feedback),
       .rule = chosen ? "must be 0 under parallelism.schedule: auto, which takes no schedule whose "
                        "gradients are late"
                      : absl::StrCat("must be 0 under ", schedule.name, ", whose gradients are ",
                                     flushes ? "never late" : "late by another time on each rank"),
       .fix = "remove it, or set parallelism.schedule: pipedream-2bw"});
}

// Refuses what ranks that split layers cannot do yet. Emulated layers pass messages alone, so they
// can.
absl::Status CheckSplitLayers(const CandidateInputs& inputs, const schedule::Schedule& schedule) {
  const model::TensorShare& share = inputs.model.tensor;
  if (!share.splits() || inputs.model.config.family == model::Family::kEmulated)
    return absl::OkStatus();
  const auto refuse = [&](std::string rule, std::string fix) {
    const bool shared = share.size > 1;
    return InvalidField({.field = shared ? "parallelism.tensor" : "parallelism.tensor_leaves",
                         .value = absl::StrCat(shared ? share.size : share.leaves),
                         .rule = std::move(rule),
                         .fix = std::move(fix)});
  };
  if (schedule.updates != schedule::Updates::kFlush) {
    return refuse(absl::StrCat("must be 1 under ", schedule.name,
                               ": it applies gradients before those of norms are added up"),
                  "use a schedule that flushes every step");
  }
  if (schedule.placement == schedule::Placement::kBidirectional) {
    return refuse(
        absl::StrCat("must be 1 under ", schedule.name, ", which has two copies of the weights"),
        "use a schedule with one copy of the weights");
  }
  if (inputs.spread) {
    return refuse("its ranks share the vocabulary, which cannot be spread over pp ranks as well",
                  "use vocabulary: last or auto");
  }
  if (inputs.shares && inputs.num_replicas() > 1 && share.leaves_here() > 1) {
    return refuse("replicas share the optimizer's state, so each leaf needs a rank of its own",
                  absl::StrCat("use tensor_leaves: ", share.size, ", or shard: none"));
  }
  return absl::OkStatus();
}

// Refuses schedules in which a replica cannot have the microbatches of several, one after the
// other.
absl::Status CheckDataLeaves(const CandidateInputs& inputs, const schedule::Schedule& schedule) {
  const int leaves = inputs.job.parallelism.data_leaves;
  if (leaves == 0) return absl::OkStatus();
  const auto refuse = [&](std::string rule, std::string fix) {
    return InvalidField({.field = "parallelism.data_leaves",
                         .value = absl::StrCat(leaves),
                         .rule = std::move(rule),
                         .fix = std::move(fix)});
  };
  if (schedule.updates != schedule::Updates::kFlush) {
    return refuse(absl::StrCat("does not go with ", schedule.name,
                               ", which does not add up the gradients of a step"),
                  "use a schedule that flushes every step, or remove it");
  }
  if (schedule.placement == schedule::Placement::kBidirectional) {
    return refuse(absl::StrCat("does not go with ", schedule.name,
                               ", which adds the microbatches of two copies of the weights"),
                  "use a schedule with one copy of the weights, or remove it");
  }
  if (!schedule::AccumulatesInOrder(schedule)) {
    return refuse(absl::StrCat("does not go with ", schedule.name,
                               ", which accumulates weight gradients out of microbatch order"),
                  "use another schedule, or remove it");
  }
  return absl::OkStatus();
}

// Refuses what ranks that share experts cannot do yet.
absl::Status CheckSharedExperts(const CandidateInputs& inputs, const schedule::Schedule& schedule) {
  const int size = inputs.model.experts.size;
  if (size == 1) return absl::OkStatus();
  const auto refuse = [&](std::string rule, std::string fix) {
    return InvalidField({.field = "parallelism.expert",
                         .value = absl::StrCat(size),
                         .rule = std::move(rule),
                         .fix = std::move(fix)});
  };
  if (inputs.dp_size % size != 0) {
    return refuse(absl::StrCat("must divide parallelism.data (", inputs.dp_size, ")"),
                  "correct one of them");
  }
  if (schedule.updates != schedule::Updates::kFlush) {
    return refuse(absl::StrCat("must be 1 under ", schedule.name,
                               ": gradients of experts are summed at the end of a step"),
                  "use a schedule that flushes every step");
  }
  if (inputs.shares) {
    return refuse("replicas cannot share both experts and the optimizer's state yet",
                  "use 1, or shard: none");
  }
  if (inputs.spread) {
    return refuse("the vocabulary cannot be spread where replicas share experts yet",
                  "use vocabulary: last or auto");
  }
  return absl::OkStatus();
}

// Refuses what ranks that share sequences cannot do yet.
absl::Status CheckSharedSequences(const CandidateInputs& inputs,
                                  const schedule::Schedule& schedule) {
  if (inputs.model.context_ranks == 1) return absl::OkStatus();
  const auto refuse = [&](std::string rule, std::string fix) {
    return InvalidField({.field = "parallelism.context",
                         .value = absl::StrCat(inputs.model.context_ranks),
                         .rule = std::move(rule),
                         .fix = std::move(fix)});
  };
  if (inputs.options.device == config::DeviceKind::kCuda)
    return refuse("workers share sequences on CPUs only", "use 1, or device: cpu");
  if (schedule.updates != schedule::Updates::kFlush) {
    return refuse(absl::StrCat("must be 1 under ", schedule.name,
                               ": its updates count the scored tokens of a rank's microbatches"),
                  "use a schedule that flushes every step");
  }
  if (schedule.placement == schedule::Placement::kBidirectional) {
    return refuse(
        absl::StrCat("must be 1 under ", schedule.name, ", which has two copies of the weights"),
        "use a schedule with one copy of the weights");
  }
  if (inputs.spread) {
    return refuse("its ranks have different tokens, whose words cannot be spread over pp ranks yet",
                  "use vocabulary: last or auto");
  }
  return absl::OkStatus();
}

// Checks that GPUs can multiply the model's matrices in FP8.
absl::Status CheckFp8Matrices(const CandidateInputs& inputs) {
  const model::Fp8Recipe recipe = inputs.job.fp8;
  if (recipe == model::Fp8Recipe::kNone || inputs.options.device != config::DeviceKind::kCuda)
    return absl::OkStatus();
  const bool blocks = recipe == model::Fp8Recipe::kBlock;
  constexpr std::int64_t kVector = 16, kBlock = 128, kRowsOfBlocks = 4;
  const std::int64_t unit = blocks ? kBlock : kVector;
  for (const model::Layer& layer : inputs.model.layers) {
    for (const model::Parameter& parameter : layer.parameters) {
      const std::vector<std::int64_t>& sides = parameter.shape;
      if (layer.block < 0 || sides.size() != 2) continue;
      if (sides[0] % unit == 0 && sides[1] % unit == 0) continue;
      return InvalidField(
          {.field = "precision",
           .value = "fp8",
           .rule = absl::StrCat("GPUs multiply matrices in FP8 whose sides are multiples of ", unit,
                                ", and ", parameter.name, " is ", sides[0], " x ", sides[1]),
           .fix = "use precision: bf16, or device: cpu"});
    }
  }
  const std::int64_t context = inputs.model.config.context;
  if (!blocks || inputs.model.microbatch * context % kRowsOfBlocks == 0) return absl::OkStatus();
  return InvalidField(
      {.field = "batch.microbatch",
       .value = absl::StrCat(inputs.model.microbatch),
       .rule = absl::StrCat("x model.context (", context, ") must be a multiple of ", kRowsOfBlocks,
                            " for FP8 in blocks on GPUs"),
       .fix = "correct one of them, or use fp8.recipe: tensor"});
}

// Checks that workers can free the weights that replicas share. program::Lower checks that there
// are some to free.
absl::Status CheckFreedWeights(const CandidateInputs& inputs) {
  if (!inputs.frees || inputs.num_replicas() == 1) return absl::OkStatus();
  const bool asked = inputs.job.parallelism.reshard == config::Reshard::kAlways;
  const auto refuse = [asked](std::string rule, std::string fix) {
    return InvalidField({.field = "parallelism.reshard_after_forward",
                         .value = asked ? "always" : "auto",
                         .rule = std::move(rule),
                         .fix = std::move(fix)});
  };
  if (inputs.options.device == config::DeviceKind::kCuda)
    return refuse("workers free weights on CPUs only", "use never, or device: cpu");
  if (inputs.model.tensor.splits()) {
    return refuse("ranks that split layers join their pieces from whole weights in a checkpoint",
                  "use never, and neither tensor nor tensor_leaves above 1");
  }
  if (inputs.spread) {
    return refuse("the rows of tables that are spread over all ranks are read all through a step",
                  "use never, or vocabulary: last");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSchedule(const CandidateInputs& inputs, const schedule::Schedule& schedule) {
  RETURN_IF_ERROR(CheckErrorFeedback(inputs.job, schedule));
  if (schedule.updates != schedule::Updates::kFlush)
    RETURN_IF_ERROR(CheckWithoutFlush(inputs, schedule));
  RETURN_IF_ERROR(CheckFp8Matrices(inputs));
  RETURN_IF_ERROR(CheckFreedWeights(inputs));
  RETURN_IF_ERROR(CheckDataLeaves(inputs, schedule));
  RETURN_IF_ERROR(CheckSharedExperts(inputs, schedule));
  RETURN_IF_ERROR(CheckSharedSequences(inputs, schedule));
  return CheckSplitLayers(inputs, schedule);
}

}  // namespace takt::plan
