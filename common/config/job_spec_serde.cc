// SPDX-License-Identifier: Apache-2.0
#include "common/config/job_spec_serde.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/f32_range.h"
#include "common/base/status.h"
#include "common/config/checkpoint_field.h"
#include "common/config/data_leaves_field.h"
#include "common/config/elastic_field.h"
#include "common/config/evaluate_field.h"
#include "common/config/file_names.h"
#include "common/config/logging_field.h"
#include "common/config/read_batch.h"
#include "common/config/read_optimizer.h"
#include "common/config/read_parallelism.h"
#include "common/config/read_precision.h"
#include "common/config/replan_field.h"
#include "common/config/spec_rules.h"
#include "takt/v1/job_spec.pb.h"

namespace takt::config {
namespace {

using Rules = SpecRules;

static_assert(static_cast<int>(model::Recompute::kFull) == v1::RECOMPUTE_MODE_FULL);
static_assert(static_cast<int>(Vocabulary::kSpread) == v1::VOCABULARY_MODE_SPREAD);
static_assert(static_cast<int>(model::RouterScores::kSigmoid) == v1::EXPERT_SCORES_SIGMOID);
static_assert(static_cast<int>(Documents::kSeparate) == v1::DOCUMENTS_MODE_SEPARATE);

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
  if (given && !model::HasRotaryPositions(model.family)) {
    rules.Check(false, {.field = proto.has_rope_theta() ? "model.rope_theta" : "model.rope_scaling",
                        .rule = "gpt2 and emulated models have no rotary positions",
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

void ReadExperts(const v1::ExpertsSpec& proto, model::ModelConfig& model, Rules& rules) {
  model.mixture =
      model::Mixture{.experts = proto.count(),
                     .chosen = proto.per_token(),
                     .inner = proto.has_inner() ? proto.inner() : model.inner,
                     .normalised = !proto.has_normalize() || proto.normalize(),
                     .auxiliary_loss = proto.auxiliary_loss(),
                     .dense_blocks = {proto.dense_blocks().begin(), proto.dense_blocks().end()}};
  rules.Supported("model.experts.scores", NameOf(proto.scores()),
                  v1::ExpertScores_IsValid(proto.scores()), "softmax or sigmoid");
  const bool sigmoid = proto.scores() == v1::EXPERT_SCORES_SIGMOID;
  if (sigmoid) model.mixture->scores = model::RouterScores::kSigmoid;
  if (!proto.has_bias_rate()) return;
  model.mixture->bias_rate = proto.bias_rate();
  rules.Check(sigmoid, {.field = "model.experts.bias_rate",
                        .value = absl::StrCat(proto.bias_rate()),
                        .rule = "has no effect without scores: sigmoid, which alone has a bias",
                        .fix = "remove it, or add scores: sigmoid"});
}

// Rows of experts are counted in f32, where whole numbers are exact up to 2^24.
void CheckCountedRows(const JobSpec& job, Rules& rules) {
  const std::optional<model::Mixture>& mixture = job.model.mixture;
  if (!mixture.has_value() || mixture->scores != model::RouterScores::kSigmoid) return;
  constexpr std::int64_t kMostTokens = std::int64_t{1} << 24;
  rules.Check(std::int64_t{job.global_batch} * job.model.context <= kMostTokens,
              {.field = "batch.global",
               .value = absl::StrCat(job.global_batch),
               .rule = absl::StrCat("x model.context (", job.model.context, ") must be at most ",
                                    kMostTokens, " where model.experts.scores is sigmoid"),
               .fix = "lower it, or use scores: softmax"});
}

void ReadDropout(const v1::ModelSpec& proto, JobSpec& job, Rules& rules) {
  rules.Check(proto.dropout() == 0,
              {.field = "model.dropout",
               .value = absl::StrCat(proto.dropout()),
               .rule = "is not supported: its random numbers would have to be the same with every "
                       "schedule, partition and number of ranks, so that losses keep their bits",
               .fix = "remove it; weight_decay and loss.label_smoothing regularize, too"});
  if (proto.has_dropout() || !(proto.hf_config_dropout() > 0)) return;
  job.warnings.push_back(absl::StrCat("model: the config.json names dropout of ",
                                      proto.hf_config_dropout(),
                                      ", but this job trains without; dropout: 0 confirms that"));
}

// Reads what layers that only take time take and hold.
void ReadEmulated(const v1::ModelSpec& proto, model::ModelConfig& model) {
  model.context = std::max(model.context, 1);  // it only scales the count of tokens
  model.forward_seconds = proto.forward_ms() * 1e-3;
  model.input_grad_seconds = proto.input_grad_ms() * 1e-3;
  model.weight_grad_seconds = proto.weight_grad_ms() * 1e-3;
  model.activation_bytes = proto.activation_bytes();
  model.parameter_bytes = proto.parameter_bytes();
  model.collective_bytes = proto.collective_bytes();
}

// Warns of the same fields where layers compute.
void WarnOfEmulated(const v1::ModelSpec& proto, JobSpec& job) {
  const auto warn = [&job](const char* field, bool is_set) {
    if (!is_set) return;
    job.warnings.push_back(
        absl::StrCat("model.", field, ": has no effect, because it is of family emulated alone"));
  };
  warn("forward_ms", proto.forward_ms() != 0);
  warn("input_grad_ms", proto.input_grad_ms() != 0);
  warn("weight_grad_ms", proto.weight_grad_ms() != 0);
  warn("activation_bytes", proto.activation_bytes() != 0);
  warn("parameter_bytes", proto.parameter_bytes() != 0);
  warn("collective_bytes", proto.collective_bytes() != 0);
}

void ReadModel(const v1::ModelSpec& proto, JobSpec& job, Rules& rules) {
  if (!rules.Check(
          v1::ModelFamily_IsValid(proto.family()) && proto.family() != v1::MODEL_FAMILY_UNSPECIFIED,
          {.field = "model.family",
           .rule = "is missing",
           .fix = "use gpt2, llama, qwen2, qwen3, mistral, mixtral, qwen3_moe or emulated, or name "
                  "model.hf_config"})) {
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
  if (proto.has_attention_window()) model.attention_window = proto.attention_window();
  if (proto.has_experts()) ReadExperts(proto.experts(), model, rules);
  ReadDropout(proto, job, rules);
  job.init_from = proto.init_from();
  if (model.family == model::Family::kEmulated) {
    ReadEmulated(proto, model);
    rules.Check(job.init_from.empty(), {.field = "model.init_from",
                                        .value = Shown(job.init_from),
                                        .rule = "emulated layers have no weights",
                                        .fix = "remove it"});
  } else {
    WarnOfEmulated(proto, job);
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

// Returns the first file of the job that says nowhere where documents begin, or "".
std::string PathOfStream(const JobSpec& job) {
  for (const Corpus& corpus : job.train) {
    if (corpus.format != DataFormat::kSafetensors) return corpus.path;
  }
  const bool validates_on_stream =
      job.validation.has_value() && job.validation->format != DataFormat::kSafetensors;
  return validates_on_stream ? job.validation->path : "";
}

void ReadDocuments(const v1::DataSpec& proto, JobSpec& job, Rules& rules) {
  if (job.model.family == model::Family::kEmulated) return;
  rules.Supported("data.documents", NameOf(proto.documents()),
                  v1::DocumentsMode_IsValid(proto.documents()), "join or separate");
  job.documents = static_cast<Documents>(proto.documents());
  if (proto.has_document_end()) {
    const int end = proto.document_end();
    rules.Check(end >= 0 && (job.model.vocab < 1 || end < job.model.vocab),
                {.field = "data.document_end",
                 .value = absl::StrCat(end),
                 .rule = absl::StrCat("must be a token id, 0 to ", job.model.vocab - 1,
                                      " (model.vocab - 1)"),
                 .fix = "give the id of the token that ends documents in the files"});
    rules.Check(job.documents != Documents::kJoin,
                {.field = "data.document_end",
                 .value = absl::StrCat(end),
                 .rule = "has no effect beside documents: join, which tells no document apart",
                 .fix = "remove it, or use documents: separate"});
    job.document_end = end;
  }
  const std::string stream = PathOfStream(job);
  rules.Check(!job.SeparatesDocuments() || job.document_end.has_value() || stream.empty(),
              {.field = "data.document_end",
               .rule = absl::StrCat("is missing: ", Shown(stream),
                                    " does not say where documents end, and no "
                                    "config.json of the model names an eos_token_id"),
               .fix = "give the id of the token that ends documents, or use documents: join"});
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
    rules.Path(field + ".path", corpus.path(), "name a token file");
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
  rules.Path("data.validation.path", validation.path(), "name a token file");
  rules.AtLeast("data.validation.every_steps", validation.every_steps(), 0);
  const int batches = validation.has_batches() ? validation.batches() : 1;
  rules.AtLeast("data.validation.batches", batches, 1);
  job.validation =
      Validation{.path = validation.path(),
                 .format = ReadFormat("data.validation.format", validation.format(), rules),
                 .every_steps = validation.every_steps(),
                 .batches = batches};
}

void ReadLoss(const v1::LossSpec& proto, JobSpec& job, Rules& rules) {
  const Loss loss{.label_smoothing = proto.label_smoothing(), .z_loss = proto.z_loss()};
  rules.Check(loss.label_smoothing >= 0 && loss.label_smoothing < 1,
              {.field = "loss.label_smoothing",
               .value = absl::StrCat(loss.label_smoothing),
               .rule = "must be at least 0 and below 1",
               .fix = "correct it, e.g. 0.1"});
  rules.Check(IsFiniteInF32(loss.z_loss) && loss.z_loss >= 0,
              {.field = "loss.z_loss",
               .value = absl::StrCat(loss.z_loss),
               .rule = WithF32Bound("must be a finite number, 0 or more", loss.z_loss),
               .fix = "correct it, e.g. 1e-4"});
  if (job.model.family != model::Family::kEmulated) {
    job.loss = loss;
  } else if (loss.label_smoothing != 0 || loss.z_loss != 0) {
    job.warnings.push_back("loss: has no effect on an emulated model, which computes none");
  }
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
  ReadDocuments(proto.data(), job, rules);
  ReadBatch(proto, job, rules);
  CheckCountedRows(job, rules);
  ReadLoss(proto.loss(), job, rules);
  ReadOptimizer(proto.optimizer(), job, rules);
  ReadEvaluation(proto, job, rules);
  ReadParallelism(proto.parallelism(), job, rules);
  ReadPrecision(proto, job, rules);
  ReadPriority(proto, job, rules);
  if (proto.has_checkpoint()) ReadCheckpoint(proto.checkpoint(), job, rules);
  ReadReplan(proto, job, rules);
  ReadElastic(proto, job, rules);
  CheckDataLeaves(job, rules);
  ReadLogging(proto.logging(), job, rules);
  RETURN_IF_ERROR(rules.status());
  return job;
}

}  // namespace takt::config
