// SPDX-License-Identifier: Apache-2.0
#include "common/config/read_optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/f32_range.h"
#include "common/base/field_rules.h"
#include "common/config/file_names.h"
#include "common/config/parameter_groups.h"
#include "common/config/spec_rules.h"
#include "common/model/model.h"
#include "takt/v1/job_spec.pb.h"

namespace takt::config {
namespace {

static_assert(static_cast<int>(LrDecay::kInverseSqrt) == v1::LR_DECAY_INVERSE_SQRT);

// Checks that `value` is in [0, below) and finite in f32.
void Number(FieldRules& rules, const std::string& field, double value, double below = HUGE_VAL) {
  rules.Check(
      IsFiniteInF32(value) && value >= 0 && value < below,
      {.field = field,
       .value = absl::StrCat(value),
       .rule = std::isfinite(below) ? absl::StrCat("must be at least 0 and below ", below)
                                    : WithF32Bound("must be a finite number, 0 or more", value),
       .fix = "correct it"});
}

// section: "optimizer.adamw" or the like.
void ReadAdamw(const v1::AdamwSpec& proto, const std::string& section, Adamw& adamw,
               FieldRules& rules) {
  if (proto.has_learning_rate()) adamw.learning_rate = proto.learning_rate();
  if (proto.has_beta1()) adamw.beta1 = proto.beta1();
  if (proto.has_beta2()) adamw.beta2 = proto.beta2();
  if (proto.has_epsilon()) adamw.epsilon = proto.epsilon();
  if (proto.has_weight_decay()) adamw.weight_decay = proto.weight_decay();
  if (proto.has_clip_norm()) adamw.clip_norm = proto.clip_norm();
  Number(rules, section + ".learning_rate", adamw.learning_rate);
  Number(rules, section + ".beta1", adamw.beta1, 1);
  Number(rules, section + ".beta2", adamw.beta2, 1);
  Number(rules, section + ".epsilon", adamw.epsilon);
  Number(rules, section + ".weight_decay", adamw.weight_decay);
  Number(rules, section + ".clip_norm", adamw.clip_norm);
}

void ReadLion(const v1::LionSpec& proto, Lion& lion, FieldRules& rules) {
  if (proto.has_learning_rate()) lion.learning_rate = proto.learning_rate();
  if (proto.has_beta1()) lion.beta1 = proto.beta1();
  if (proto.has_beta2()) lion.beta2 = proto.beta2();
  if (proto.has_weight_decay()) lion.weight_decay = proto.weight_decay();
  if (proto.has_clip_norm()) lion.clip_norm = proto.clip_norm();
  Number(rules, "optimizer.lion.learning_rate", lion.learning_rate);
  Number(rules, "optimizer.lion.beta1", lion.beta1, 1);
  Number(rules, "optimizer.lion.beta2", lion.beta2, 1);
  Number(rules, "optimizer.lion.weight_decay", lion.weight_decay);
  Number(rules, "optimizer.lion.clip_norm", lion.clip_norm);
}

void ReadSgd(const v1::SgdSpec& proto, Sgd& sgd, FieldRules& rules) {
  if (proto.has_learning_rate()) sgd.learning_rate = proto.learning_rate();
  if (proto.has_momentum()) sgd.momentum = proto.momentum();
  if (proto.has_weight_decay()) sgd.weight_decay = proto.weight_decay();
  if (proto.has_clip_norm()) sgd.clip_norm = proto.clip_norm();
  sgd.nesterov = proto.nesterov();
  Number(rules, "optimizer.sgd.learning_rate", sgd.learning_rate);
  Number(rules, "optimizer.sgd.momentum", sgd.momentum, 1);
  Number(rules, "optimizer.sgd.weight_decay", sgd.weight_decay);
  Number(rules, "optimizer.sgd.clip_norm", sgd.clip_norm);
  rules.Check(!sgd.nesterov || sgd.momentum != 0,
              {.field = "optimizer.sgd.nesterov",
               .value = "true",
               .rule = "needs momentum, whose step it takes in advance",
               .fix = "set momentum, e.g. 0.9, or remove it"});
}

void ReadMuon(const v1::MuonSpec& proto, Muon& muon, FieldRules& rules) {
  if (proto.has_learning_rate()) muon.learning_rate = proto.learning_rate();
  if (proto.has_momentum()) muon.momentum = proto.momentum();
  if (proto.has_nesterov()) muon.nesterov = proto.nesterov();
  if (proto.has_weight_decay()) muon.weight_decay = proto.weight_decay();
  if (proto.has_clip_norm()) muon.clip_norm = proto.clip_norm();
  Number(rules, "optimizer.muon.learning_rate", muon.learning_rate);
  Number(rules, "optimizer.muon.momentum", muon.momentum, 1);
  Number(rules, "optimizer.muon.weight_decay", muon.weight_decay);
  Number(rules, "optimizer.muon.clip_norm", muon.clip_norm);
  rules.Check(muon.learning_rate != 0,
              {.field = "optimizer.muon.learning_rate",
               .value = "0",
               .rule = "must be above 0: the rate of AdamW keeps its proportion to it",
               .fix = "set it, or use optimizer.adamw alone"});
  // A rate that is wrong is an error of Muon's alone.
  if (IsFiniteInF32(muon.learning_rate) && muon.learning_rate >= 0)
    muon.adamw.learning_rate = muon.learning_rate;
  ReadAdamw(proto.adamw(), "optimizer.muon.adamw", muon.adamw, rules);
  rules.Check(!proto.adamw().has_clip_norm(),
              {.field = "optimizer.muon.adamw.clip_norm",
               .value = absl::StrCat(proto.adamw().clip_norm()),
               .rule = "cannot be set: the norm is over the gradients of all parameters",
               .fix = "set optimizer.muon.clip_norm"});
}

// Reads the section of the one optimizer that there is.
void ReadSections(const v1::OptimizerSpec& proto, JobSpec& job, FieldRules& rules) {
  std::vector<std::string> given;
  if (proto.has_adamw()) given.emplace_back("adamw");
  if (proto.has_lion()) given.emplace_back("lion");
  if (proto.has_sgd()) given.emplace_back("sgd");
  if (proto.has_muon()) given.emplace_back("muon");
  rules.Check(given.size() <= 1, {.field = "optimizer",
                                  .value = absl::StrJoin(given, " and "),
                                  .rule = "must have one of adamw, lion, sgd and muon",
                                  .fix = "remove the others"});
  if (proto.has_lion()) ReadLion(proto.lion(), job.lion.emplace(), rules);
  if (proto.has_sgd()) ReadSgd(proto.sgd(), job.sgd.emplace(), rules);
  if (proto.has_muon()) ReadMuon(proto.muon(), job.muon.emplace(), rules);
  if (proto.has_adamw()) ReadAdamw(proto.adamw(), "optimizer.adamw", job.adamw, rules);
}

// Checks that the fields that the schedule's decay does not read are left out.
void CheckUnread(const v1::LrScheduleSpec& proto, LrDecay decay, FieldRules& rules) {
  const auto check = [&](const char* field, bool is_read, double value, const char* reader) {
    rules.Check(
        is_read || value == 0,
        {.field = absl::StrCat("optimizer.lr_schedule.", field),
         .value = absl::StrCat(value),
         .rule = absl::StrCat("has no effect while optimizer.lr_schedule.decay is ",
                              decay == LrDecay::kConstant ? "constant" : NameOf(proto.decay())),
         .fix = absl::StrCat("set decay: ", reader, ", or remove it")});
  };
  const bool is_constant = decay == LrDecay::kConstant;
  check("stable_steps", decay == LrDecay::kWsd, static_cast<double>(proto.stable_steps()), "wsd");
  check("decay_steps", !is_constant && decay != LrDecay::kInverseSqrt,
        static_cast<double>(proto.decay_steps()), "cosine");
  check("min_learning_rate", !is_constant, proto.min_learning_rate(), "cosine");
}

// Reads the parts of warmup-stable-decay.
void ReadWsd(const v1::LrScheduleSpec& proto, JobSpec& job, FieldRules& rules) {
  LrSchedule& schedule = job.lr_schedule;
  schedule.decay_steps = proto.decay_steps();
  const bool falls = rules.Check(
      schedule.decay_steps >= 1,
      {.field = "optimizer.lr_schedule.decay_steps",
       .value = schedule.decay_steps == 0 ? "0 or missing" : absl::StrCat(schedule.decay_steps),
       .rule = "must be 1 or more: the steps that wsd falls",
       .fix = "set it, e.g. to a tenth of steps"});
  if (proto.has_stable_steps()) {
    schedule.stable_steps = proto.stable_steps();
    rules.Check(schedule.stable_steps >= 0, {.field = "optimizer.lr_schedule.stable_steps",
                                             .value = absl::StrCat(schedule.stable_steps),
                                             .rule = "must be 0 or more",
                                             .fix = "correct it"});
    return;
  }
  // These are errors of their own, and their difference need not fit 64 bits.
  if (!falls || schedule.warmup_steps < 0 || job.steps < 1) return;
  const std::int64_t after_warmup = job.steps - schedule.warmup_steps;
  rules.Check(schedule.decay_steps <= after_warmup,
              {.field = "optimizer.lr_schedule.decay_steps",
               .value = absl::StrCat(schedule.decay_steps),
               .rule = absl::StrCat("must be at most steps (", job.steps, ") less warmup_steps (",
                                    schedule.warmup_steps, ") where stable_steps is left out"),
               .fix = "lower it, or set stable_steps"});
  schedule.stable_steps = std::max<std::int64_t>(after_warmup - schedule.decay_steps, 0);
}

void ReadLrSchedule(const v1::LrScheduleSpec& proto, JobSpec& job, FieldRules& rules) {
  LrSchedule& schedule = job.lr_schedule;
  const bool known = rules.Check(v1::LrDecay_IsValid(proto.decay()),
                                 {.field = "optimizer.lr_schedule.decay",
                                  .value = NameOf(proto.decay()),
                                  .rule = "must be constant, cosine, linear, wsd or inverse_sqrt",
                                  .fix = "use one of them"});
  if (known && proto.decay() != v1::LR_DECAY_UNSPECIFIED)
    schedule.decay = static_cast<LrDecay>(proto.decay());
  schedule.warmup_steps = proto.warmup_steps();
  // A job may end within its warmup.
  const std::int64_t last = std::max(job.steps, schedule.warmup_steps);
  schedule.decay_steps = proto.decay_steps() == 0 ? last : proto.decay_steps();
  schedule.min_learning_rate = proto.min_learning_rate();
  const OptimizerTraits optimizer = TraitsOf(job);
  const std::int64_t least = schedule.decay == LrDecay::kInverseSqrt ? 1 : 0;
  rules.Check(
      schedule.warmup_steps >= least,
      {.field = "optimizer.lr_schedule.warmup_steps",
       .value = schedule.warmup_steps == 0 ? "0 or missing" : absl::StrCat(schedule.warmup_steps),
       .rule = absl::StrCat("must be ", least, " or more"),
       .fix = least == 0 ? "set it" : "set it: inverse_sqrt falls as sqrt(warmup_steps / step)"});
  Number(rules, "optimizer.lr_schedule.min_learning_rate", schedule.min_learning_rate);
  rules.Check(!(schedule.min_learning_rate > std::max(optimizer.learning_rate, 0.0)),
              {.field = "optimizer.lr_schedule.min_learning_rate",
               .value = absl::StrCat(schedule.min_learning_rate),
               .rule = absl::StrCat("must be at most optimizer.", optimizer.name,
                                    ".learning_rate (", optimizer.learning_rate, ")"),
               .fix = "lower it"});
  CheckUnread(proto, schedule.decay, rules);
  if (schedule.decay == LrDecay::kWsd) ReadWsd(proto, job, rules);
  if (schedule.decay != LrDecay::kCosine && schedule.decay != LrDecay::kLinear) return;
  rules.Check(schedule.decay_steps >= schedule.warmup_steps,
              {.field = "optimizer.lr_schedule.decay_steps",
               .value = absl::StrCat(schedule.decay_steps),
               .rule = absl::StrCat("must be at least warmup_steps (", schedule.warmup_steps, ")"),
               .fix = "it counts from the first step, warmup included"});
}

// Checks that each group has a parameter that no group before it takes.
void CheckGroups(const JobSpec& job, FieldRules& rules) {
  const absl::StatusOr<model::Model> model = model::BuildModel(job.model, /*microbatch=*/1);
  if (!model.ok()) return;  // ReadModel reports this
  std::vector<bool> matches(job.groups.size());
  for (const model::Parameter* const parameter : model->AllParameters()) {
    const auto group = GroupOf(job.groups, parameter->name);
    if (group.has_value()) matches[*group] = true;
  }
  for (std::size_t i = 0; i < matches.size(); ++i) {
    rules.Check(matches[i],
                {.field = absl::StrCat("optimizer.groups[", i, "].parameters"),
                 .value = absl::Utf8SafeCHexEscape(job.groups[i].parameters),
                 .rule = "must match a parameter that no group above it matches",
                 .fix = absl::StrCat("e.g. *.bias; names are as in Hugging Face's files: ",
                                     model->layers.back().parameters.front().name)});
  }
}

void ReadGroups(const v1::OptimizerSpec& proto, JobSpec& job, FieldRules& rules) {
  if (proto.groups_size() == 0) return;
  if (job.model.family == model::Family::kEmulated) {
    job.warnings.push_back(
        "optimizer.groups: has no effect on an emulated model, which has no parameters");
    return;
  }
  constexpr int kMaxGroups = 64;
  constexpr std::size_t kLongestPattern = 200;
  if (!rules.Check(proto.groups_size() <= kMaxGroups,
                   {.field = "optimizer.groups",
                    .value = absl::StrCat(proto.groups_size(), " groups"),
                    .rule = absl::StrCat("must be at most ", kMaxGroups),
                    .fix = "join some by `*` in their patterns"})) {
    return;
  }
  bool patterns_ok = true;
  for (int i = 0; i < proto.groups_size(); ++i) {
    const v1::ParameterGroupSpec& group = proto.groups(i);
    const std::string field = absl::StrCat("optimizer.groups[", i, "].");
    ParameterGroup& read = job.groups.emplace_back();
    read.parameters = group.parameters();
    const std::size_t length = read.parameters.size();
    patterns_ok &= rules.Check(
        length >= 1 && length <= kLongestPattern,
        {.field = field + "parameters",
         .value = length == 0 ? "" : absl::StrCat(length, " bytes long"),
         .rule = length == 0 ? "is missing"
                             : absl::StrCat("must have at most ", kLongestPattern, " bytes"),
         .fix = "name parameters, e.g. *.bias"});
    if (group.has_learning_rate_scale()) read.learning_rate_scale = group.learning_rate_scale();
    if (group.has_weight_decay()) read.weight_decay = group.weight_decay();
    Number(rules, field + "learning_rate_scale", read.learning_rate_scale);
    Number(rules, field + "weight_decay", read.weight_decay.value_or(0));
  }
  if (patterns_ok) CheckGroups(job, rules);
}

void ReadBarrier(const std::string& barrier, JobSpec& job, FieldRules& rules) {
  const bool known =
      barrier.empty() || barrier == "auto" || barrier == "true" || barrier == "false";
  rules.Check(known, {.field = "optimizer.barrier",
                      .value = Shown(barrier),
                      .rule = "must be auto, true or false",
                      .fix = "use one of them"});
  if (barrier == "true") job.barrier = Barrier::kAlways;
  if (barrier == "false") job.barrier = Barrier::kNever;
}

void ReadErrorFeedback(double error_feedback, JobSpec& job, FieldRules& rules) {
  rules.Check(error_feedback >= 0 && error_feedback <= 1,
              {.field = "optimizer.error_feedback",
               .value = absl::StrCat(error_feedback),
               .rule = "must be a number from 0 to 1",
               .fix = "1 feeds back all of an update's error, and 0 nothing"});
  job.error_feedback = error_feedback;
  if (error_feedback > 0 && job.model.family == model::Family::kEmulated) {
    job.warnings.push_back(
        "optimizer.error_feedback: has no effect on an emulated model, which has no parameters");
  }
}

}  // namespace

void ReadOptimizer(const v1::OptimizerSpec& proto, JobSpec& job, FieldRules& rules) {
  ReadSections(proto, job, rules);
  ReadLrSchedule(proto.lr_schedule(), job, rules);
  ReadGroups(proto, job, rules);
  ReadBarrier(proto.barrier(), job, rules);
  ReadErrorFeedback(proto.error_feedback(), job, rules);
}

}  // namespace takt::config
