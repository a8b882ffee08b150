// SPDX-License-Identifier: Apache-2.0
#include "common/config/job_spec_serde.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/config/file_names.h"
#include "common/config/read_batch.h"
#include "common/config/read_parallelism.h"
#include "common/config/replan_field.h"
#include "common/config/spec_rules.h"
#include "takt/v1/job_spec.pb.h"

namespace takt::config {
namespace {

using Rules = SpecRules;

static_assert(static_cast<int>(model::Recompute::kFull) == v1::RECOMPUTE_MODE_FULL);
static_assert(static_cast<int>(Vocabulary::kSpread) == v1::VOCABULARY_MODE_SPREAD);

void ReadName(const v1::JobSpec& proto, JobSpec& job, Rules& rules) {
  const std::string& name = proto.name();
  const auto allowed = [](char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
  };
  const bool good = !name.empty() && name.size() <= kLongestJobName &&
                    absl::ascii_isalnum(name.front()) &&
                    std::all_of(name.begin(), name.end(), allowed);
  rules.Check(good,
              {.field = "name",
               .value = Shown(name),
               .rule = absl::StrCat("must be 1 to ", kLongestJobName,
                                    " letters, digits, '-', '_' and '.', the first a letter or a "
                                    "digit"),
               .fix = "e.g. my-gpt"});
  job.name = name;
}

// Returns the width that the papers chose: 4 C, and 2/3 of that for the three matrices of a gated
// MLP.
int DefaultInner(model::Family family, int hidden) {
  constexpr int kWidest = 1 << 28;
  if (hidden <= 0 || hidden > kWidest) return hidden;
  if (family == model::Family::kGpt2) return 4 * hidden;
  constexpr std::int64_t kMultiple = 64;
  return static_cast<int>((std::int64_t{8} * hidden + 3 * kMultiple - 1) / (3 * kMultiple) *
                          kMultiple);
}

void ReadRope(const v1::ModelSpec& proto, model::ModelConfig& model, Rules& rules) {
  const bool given = proto.has_rope_theta() || proto.has_rope_scaling();
  const bool rotary =
      model.family == model::Family::kLlama || model.family == model::Family::kQwen2;
  if (given && !rotary) {
    rules.Check(false, {.field = proto.has_rope_theta() ? "model.rope_theta" : "model.rope_scaling",
                        .rule = "only llama and qwen2 have rotary positions",
                        .fix = "remove it"});
    return;
  }
  if (proto.has_rope_theta()) model.rope_theta = proto.rope_theta();
  if (!proto.has_rope_scaling()) return;
  const v1::RopeScalingSpec& scaling = proto.rope_scaling();
  model.rope_scaling = model::RopeScaling{.factor = scaling.factor(),
                                          .low_freq_factor = scaling.low_freq_factor(),
                                          .high_freq_factor = scaling.high_freq_factor(),
                                          .original_positions = scaling.original_positions()};
}

void ReadModel(const v1::ModelSpec& proto, JobSpec& job, Rules& rules) {
  if (!rules.Check(
          v1::ModelFamily_IsValid(proto.family()) && proto.family() != v1::MODEL_FAMILY_UNSPECIFIED,
          {.field = "model.family",
           .rule = "is missing",
           .fix = "use gpt2, llama, qwen2 or emulated, or name a hf_config"})) {
    return;
  }
  model::ModelConfig& model = job.model;
  model.family = static_cast<model::Family>(proto.family());
  model.layers = proto.layers();
  model.hidden = proto.hidden();
  model.heads = proto.heads();
  model.kv_heads = proto.has_kv_heads() ? proto.kv_heads() : proto.heads();
  model.head_size = proto.head_size();
  model.inner = proto.has_inner() ? proto.inner() : DefaultInner(model.family, model.hidden);
  model.context = proto.context();
  model.positions = proto.has_positions() ? proto.positions() : proto.context();
  model.vocab = proto.vocab();
  if (proto.has_norm_epsilon()) model.norm_epsilon = proto.norm_epsilon();
  if (proto.has_initializer_range()) model.initializer_range = proto.initializer_range();
  model.tied_head =
      proto.has_tied_head() ? proto.tied_head() : model.family == model::Family::kGpt2;
  ReadRope(proto, model, rules);
  model.forward_seconds = proto.forward_ms() * 1e-3;
  model.input_grad_seconds = proto.input_grad_ms() * 1e-3;
  model.weight_grad_seconds = proto.weight_grad_ms() * 1e-3;
  model.activation_bytes = proto.activation_bytes();
  job.init_from = proto.init_from();
  if (model.family == model::Family::kEmulated) {
    model.context = std::max(model.context, 1);  // it only scales the count of tokens
    rules.Check(job.init_from.empty(), {.field = "model.init_from",
                                        .value = Shown(job.init_from),
                                        .rule = "emulated layers have no weights",
                                        .fix = "remove it"});
  }
  for (FieldError& error : model::CheckConfig(model)) rules.Check(false, std::move(error));
}

DataFormat ReadFormat(const std::string& field, v1::DataFormat format, Rules& rules) {
  constexpr char kFormats[] = "bytes, uint16, uint32, llmc, megatron or safetensors";
  if (rules.Check(format != v1::DATA_FORMAT_UNSPECIFIED,
                  {.field = field, .rule = "is missing", .fix = absl::StrCat("use ", kFormats)})) {
    rules.Supported(field, NameOf(format), v1::DataFormat_IsValid(format), kFormats);
  }
  return static_cast<DataFormat>(format);
}

void CheckPath(const std::string& field, const std::string& path, const char* fix, Rules& rules) {
  rules.Check(!path.empty(), {.field = field, .rule = "is missing", .fix = fix});
  rules.Check(
      path.find('\0') == std::string::npos,
      {.field = field, .value = Shown(path), .rule = "must be a path", .fix = "correct it"});
}

void CheckShares(const std::vector<Corpus>& train, Rules& rules) {
  double sum = 0;
  for (const Corpus& corpus : train) sum += corpus.weight;
  if (!std::isfinite(sum)) return;
  for (std::size_t i = 0; i < train.size(); ++i) {
    if (!(train[i].weight > 0)) continue;  // ReadData reports this
    rules.Check(train[i].weight / sum * kLongestMixtureCycle >= 1,
                {.field = absl::StrCat("data.train[", i, "].weight"),
                 .value = absl::StrCat(train[i].weight),
                 .rule = absl::StrCat("must be at least 1/", kLongestMixtureCycle,
                                      " of the sum of all weights, ", sum),
                 .fix = "raise it, or leave the corpus out"});
  }
}

void ReadData(const v1::DataSpec& proto, JobSpec& job, Rules& rules) {
  if (job.model.family == model::Family::kEmulated) {
    // A data set is no error here, so that a real job's file can be emulated by changing its model
    // alone.
    if (proto.train_size() > 0 || proto.has_validation())
      job.warnings.push_back("data: has no effect on an emulated model, which reads no tokens");
    return;
  }
  job.shuffle = proto.shuffle();
  rules.Check(proto.train_size() >= 1,
              {.field = "data.train", .rule = "is missing", .fix = "give a path and a format"});
  for (int i = 0; i < proto.train_size(); ++i) {
    const v1::CorpusSpec& corpus = proto.train(i);
    const std::string field =
        proto.train_size() == 1 ? "data.train" : absl::StrCat("data.train[", i, "]");
    CheckPath(field + ".path", corpus.path(), "name a token file", rules);
    const double weight = corpus.has_weight() ? corpus.weight() : 1;
    rules.Check(std::isfinite(weight) && weight > 0, {.field = field + ".weight",
                                                      .value = absl::StrCat(weight),
                                                      .rule = "must be a finite number above 0",
                                                      .fix = "correct it"});
    job.train.push_back({.path = corpus.path(),
                         .format = ReadFormat(field + ".format", corpus.format(), rules),
                         .weight = weight});
  }
  CheckShares(job.train, rules);
  if (!proto.has_validation()) return;
  const v1::ValidationSpec& validation = proto.validation();
  CheckPath("data.validation.path", validation.path(), "name a token file", rules);
  rules.AtLeast("data.validation.every_steps", validation.every_steps(), 0);
  const int batches = validation.has_batches() ? validation.batches() : 1;
  rules.AtLeast("data.validation.batches", batches, 1);
  job.validation =
      Validation{.path = validation.path(),
                 .format = ReadFormat("data.validation.format", validation.format(), rules),
                 .every_steps = validation.every_steps(),
                 .batches = batches};
}

void ReadAdamw(const v1::AdamwSpec& proto, Adamw& adamw, Rules& rules) {
  const double infinity = HUGE_VAL;
  if (proto.has_learning_rate()) adamw.learning_rate = proto.learning_rate();
  if (proto.has_beta1()) adamw.beta1 = proto.beta1();
  if (proto.has_beta2()) adamw.beta2 = proto.beta2();
  if (proto.has_epsilon()) adamw.epsilon = proto.epsilon();
  if (proto.has_weight_decay()) adamw.weight_decay = proto.weight_decay();
  if (proto.has_clip_norm()) adamw.clip_norm = proto.clip_norm();
  rules.Number("optimizer.adamw.learning_rate", adamw.learning_rate, 0, infinity);
  rules.Number("optimizer.adamw.beta1", adamw.beta1, 0, 1);
  rules.Number("optimizer.adamw.beta2", adamw.beta2, 0, 1);
  rules.Number("optimizer.adamw.epsilon", adamw.epsilon, 0, infinity);
  rules.Number("optimizer.adamw.weight_decay", adamw.weight_decay, 0, infinity);
  rules.Number("optimizer.adamw.clip_norm", adamw.clip_norm, 0, infinity);
}

void ReadLrSchedule(const v1::LrScheduleSpec& proto, JobSpec& job, Rules& rules) {
  LrSchedule& schedule = job.lr_schedule;
  schedule.warmup_steps = proto.warmup_steps();
  schedule.decay = proto.decay() == v1::LR_DECAY_COSINE ? LrDecay::kCosine : LrDecay::kConstant;
  schedule.decay_steps = proto.decay_steps() == 0 ? job.steps : proto.decay_steps();
  schedule.min_learning_rate = proto.min_learning_rate();
  rules.Check(v1::LrDecay_IsValid(proto.decay()), {.field = "optimizer.lr_schedule.decay",
                                                   .value = NameOf(proto.decay()),
                                                   .rule = "must be constant or cosine",
                                                   .fix = "use one of them"});
  rules.AtLeast("optimizer.lr_schedule.warmup_steps", schedule.warmup_steps, 0);
  rules.Number("optimizer.lr_schedule.min_learning_rate", schedule.min_learning_rate, 0, HUGE_VAL);
  rules.Check(!(schedule.min_learning_rate > std::max(job.adamw.learning_rate, 0.0)),
              {.field = "optimizer.lr_schedule.min_learning_rate",
               .value = absl::StrCat(schedule.min_learning_rate),
               .rule = absl::StrCat("must be at most optimizer.adamw.learning_rate (",
                                    job.adamw.learning_rate, ")"),
               .fix = "lower it"});
  if (schedule.decay != LrDecay::kCosine) {
    const auto check_unset = [&](const char* field, double value) {
      rules.Check(value == 0,
                  {.field = field,
                   .value = absl::StrCat(value),
                   .rule = "has no effect while optimizer.lr_schedule.decay is constant",
                   .fix = "set decay: cosine, or remove it"});
    };
    check_unset("optimizer.lr_schedule.decay_steps", static_cast<double>(proto.decay_steps()));
    check_unset("optimizer.lr_schedule.min_learning_rate", proto.min_learning_rate());
    return;
  }
  rules.Check(schedule.decay_steps >= schedule.warmup_steps,
              {.field = "optimizer.lr_schedule.decay_steps",
               .value = absl::StrCat(schedule.decay_steps),
               .rule = absl::StrCat("must be at least warmup_steps (", schedule.warmup_steps, ")"),
               .fix = "it counts from the first step, warmup included"});
}

void ReadCopies(const v1::CheckpointSpec& proto, JobSpec& job, Rules& rules) {
  const std::string& text = proto.in_memory();
  if (text.empty() || text == "auto") {
    job.copy_every_steps = kAutoCopies;
  } else if (text != "off") {
    const bool valid = absl::SimpleAtoi(text, &job.copy_every_steps) && job.copy_every_steps > 0;
    rules.Check(valid, {.field = "checkpoint.in_memory",
                        .value = Shown(text),
                        .rule = "must be auto, off or a number of steps above 0",
                        .fix = "use one of them"});
  }
}

// True if the section asks for copies in memory alone.
bool SavesNoFiles(const v1::CheckpointSpec& proto) {
  return proto.directory().empty() && !proto.in_memory().empty() && proto.in_memory() != "off" &&
         proto.every_steps() == 0 && !proto.has_keep() && proto.resume().empty();
}

void ReadCheckpoint(const v1::CheckpointSpec& proto, JobSpec& job, Rules& rules) {
  ReadCopies(proto, job, rules);
  if (SavesNoFiles(proto)) return;
  Checkpoint& checkpoint = job.checkpoint.emplace();
  checkpoint.directory = proto.directory();
  checkpoint.every_steps = proto.every_steps();
  if (proto.has_keep()) checkpoint.keep = proto.keep();
  if (!proto.resume().empty()) checkpoint.resume = proto.resume();
  CheckPath("checkpoint.directory", checkpoint.directory, "name a folder", rules);
  rules.AtLeast("checkpoint.every_steps", checkpoint.every_steps, 0);
  rules.AtLeast("checkpoint.keep", checkpoint.keep, 1);
  std::int64_t step = 0;
  const std::string& resume = checkpoint.resume;
  rules.Check(resume == "auto" || resume == "none" || (absl::SimpleAtoi(resume, &step) && step > 0),
              {.field = "checkpoint.resume",
               .value = Shown(resume),
               .rule = "must be auto, none or the number of a step",
               .fix = "use one of them"});
}

void ReadPrecision(const v1::JobSpec& proto, JobSpec& job, Rules& rules) {
  rules.Supported("precision", NameOf(proto.precision()), v1::Precision_IsValid(proto.precision()),
                  "f32 or bf16");
  if (proto.precision() != v1::PRECISION_BF16) return;
  if (job.model.family == model::Family::kEmulated) {
    job.warnings.push_back(
        "precision: has no effect on an emulated model, which multiplies nothing");
    return;
  }
  job.precision = Precision::kBf16;
}

void ReadPriority(const v1::JobSpec& proto, JobSpec& job, Rules& rules) {
  if (!proto.has_priority()) return;
  job.priority = proto.priority();
  rules.Check(job.priority >= 0 && job.priority <= kHighestPriority,
              {.field = "priority",
               .value = absl::StrCat(job.priority),
               .rule = absl::StrCat("must be between 0 and ", kHighestPriority),
               .fix = absl::StrCat("correct it, or leave it out: ", kDefaultPriority)});
}

void ReadLogging(const v1::LoggingSpec& proto, JobSpec& job, Rules& rules) {
  if (!proto.has_tensorboard()) return;
  job.tensorboard = proto.tensorboard();
  CheckPath("logging.tensorboard", job.tensorboard, "name a folder, or null for none", rules);
}

}  // namespace

absl::StatusOr<JobSpec> ToJobSpec(const v1::JobSpec& proto) {
  Rules rules;
  JobSpec job;
  job.steps = proto.steps();
  job.seed = proto.seed();
  if (proto.has_exact()) job.exact = proto.exact();
  ReadName(proto, job, rules);
  ReadModel(proto.model(), job, rules);
  ReadData(proto.data(), job, rules);
  ReadBatch(proto, job, rules);
  ReadAdamw(proto.optimizer().adamw(), job.adamw, rules);
  ReadLrSchedule(proto.optimizer().lr_schedule(), job, rules);
  rules.AtLeast("steps", proto.steps(), 1);
  ReadParallelism(proto.parallelism(), job, rules);
  ReadPrecision(proto, job, rules);
  ReadPriority(proto, job, rules);
  if (proto.has_checkpoint()) ReadCheckpoint(proto.checkpoint(), job, rules);
  ReadReplan(proto, job, rules);
  ReadLogging(proto.logging(), job, rules);
  RETURN_IF_ERROR(rules.status());
  return job;
}

}  // namespace takt::config
