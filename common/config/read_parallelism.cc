// SPDX-License-Identifier: Apache-2.0
#include "common/config/read_parallelism.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/config/file_names.h"
#include "common/config/read_batch.h"
#include "common/config/spec_rules.h"
#include "common/model/context_layers.h"
#include "takt/v1/job_spec.pb.h"

namespace takt::config {

static_assert(static_cast<int>(Shard::kParameters) == v1::SHARD_MODE_PARAMETERS);
static_assert(static_cast<int>(Reshard::kNever) == v1::RESHARD_MODE_NEVER);

namespace {

using Rules = SpecRules;

constexpr int kMaxRanks = 4096;
// Sums of ranks that split layers go along a tree (transport::Collective::kMostInTree).
constexpr int kMaxTensorRanks = 1024;
constexpr std::int64_t kMaxRanksOfAMesh = 1 << 20;  // as mesh::kMostRanks, a room above

std::optional<int> Optional(bool has, int value) {
  return has ? std::optional<int>(value) : std::nullopt;
}

// A stage may consist of the embedding or of the head alone, which an emulated model has not.
void CheckStages(const Parallelism& p, const model::ModelConfig& model, Rules& rules) {
  const int ends = model.family == model::Family::kEmulated ? 0 : 2;
  const std::int64_t chunks = p.chunks.value_or(1);
  if (p.pipeline.has_value()) {
    const std::int64_t stages = *p.pipeline * chunks;
    const std::int64_t most = std::int64_t{model.layers} + ends;
    rules.Check(stages <= most, {.field = "parallelism.pipeline",
                                 .value = absl::StrCat(*p.pipeline),
                                 .rule = absl::StrCat("x chunks (", chunks, ") makes ", stages,
                                                      " stages; must be at most model.layers",
                                                      ends == 0 ? "" : " + 2", " (", most, ")"),
                                 .fix = "use fewer ranks or chunks, or more layers"});
  }
  if (p.stage_layers.empty()) return;
  const std::string shown = absl::StrCat("[", absl::StrJoin(p.stage_layers, ", "), "]");
  std::int64_t sum = 0;
  for (const int count : p.stage_layers) sum += count;
  bool positive = true;
  for (std::size_t stage = 0; stage < p.stage_layers.size(); ++stage) {
    const bool at_an_end = stage == 0 || stage + 1 == p.stage_layers.size();
    positive &= p.stage_layers[stage] >= (at_an_end && ends > 0 ? 0 : 1);
  }
  rules.Check(positive,
              {.field = "parallelism.stage_layers",
               .value = shown,
               .rule = ends == 0 ? "every stage must have at least 1 layer"
                                 : "every stage must have at least 1 layer; only the first and the "
                                   "last may have 0, where the embedding or the head is alone",
               .fix = "correct the counts"});
  rules.Check(sum == model.layers,
              {.field = "parallelism.stage_layers",
               .value = shown,
               .rule = absl::StrCat("must sum to model.layers (", model.layers, "), not ", sum),
               .fix = "correct the counts"});
  const auto stages = static_cast<std::int64_t>(p.stage_layers.size());
  const bool fits =
      !p.pipeline.has_value() ||
      (p.chunks.has_value() ? stages == *p.pipeline * chunks : stages % *p.pipeline == 0);
  rules.Check(fits,
              {.field = "parallelism.stage_layers",
               .value = shown,
               .rule = p.chunks.has_value() ? absl::StrCat("must have pipeline x chunks = ",
                                                           *p.pipeline * chunks, " entries")
                                            : absl::StrCat("must have a multiple of pipeline (",
                                                           p.pipeline.value_or(1), ") entries"),
               .fix = "give one count for each stage"});
}

void ReadRecompute(const v1::ParallelismSpec& proto, JobSpec& job, Rules& rules) {
  for (const int number : proto.recompute()) {
    const auto mode = static_cast<v1::RecomputeMode>(number);
    const bool known =
        rules.Check(v1::RecomputeMode_IsValid(number) && mode != v1::RECOMPUTE_MODE_UNSPECIFIED,
                    {.field = "parallelism.recompute",
                     .value = NameOf(mode),
                     .rule = "must be none, selective or full, or a list of them, one a stage",
                     .fix = "correct it, or leave it out: auto"});
    if (!known) return;
    rules.Check(mode == v1::RECOMPUTE_MODE_NONE || job.model.family != model::Family::kEmulated,
                {.field = "parallelism.recompute",
                 .value = NameOf(mode),
                 .rule = "the layers of an emulated model keep nothing",
                 .fix = "remove it"});
    job.parallelism.recompute.push_back(static_cast<model::Recompute>(mode));
  }
}

// The planner checks later whether the schedule and the devices allow the mode.
void ReadVocabulary(const v1::ParallelismSpec& proto, JobSpec& job, Rules& rules) {
  rules.Supported("parallelism.vocabulary", NameOf(proto.vocabulary()),
                  v1::VocabularyMode_IsValid(proto.vocabulary()), "auto, last or spread");
  const bool spreads = proto.vocabulary() == v1::VOCABULARY_MODE_SPREAD;
  rules.Check(!spreads || job.model.family != model::Family::kEmulated,
              {.field = "parallelism.vocabulary",
               .value = "spread",
               .rule = "an emulated model has no words",
               .fix = "remove it"});
  job.parallelism.vocabulary = static_cast<Vocabulary>(proto.vocabulary());
}

// Whether there are such devices shows when the job gets its workers.
void CheckDevice(const v1::ParallelismSpec& proto, const JobSpec& job, Rules& rules) {
  rules.Supported("parallelism.transport", NameOf(proto.transport()),
                  v1::TransportKind_IsValid(proto.transport()), "auto, shm, tcp, nccl or cuda_ipc");
  rules.Supported("parallelism.device", NameOf(proto.device()),
                  v1::DeviceKind_IsValid(proto.device()), "auto, cpu or cuda");
  const bool cuda = proto.device() == v1::DEVICE_KIND_CUDA;
  const bool between_gpus = proto.transport() == v1::TRANSPORT_KIND_NCCL ||
                            proto.transport() == v1::TRANSPORT_KIND_CUDA_IPC;
  const bool emulated = job.model.family == model::Family::kEmulated;
  rules.Check(!cuda || !emulated, {.field = "parallelism.device",
                                   .value = "cuda",
                                   .rule = "emulated layers compute nothing",
                                   .fix = "use auto or cpu"});
  const bool on_cpus = emulated || proto.device() == v1::DEVICE_KIND_CPU;
  rules.Check(!between_gpus || !on_cpus,
              {.field = "parallelism.transport",
               .value = NameOf(proto.transport()),
               .rule = "moves memory of GPUs, and this job computes on CPUs",
               .fix = "use auto, shm or tcp, or device: cuda"});
}

// Returns "use one of 1, 2, 4" with all sizes that fit.
std::string UseOneThatFits(const std::function<bool(int)>& fits) {
  std::vector<int> sizes;
  for (int size = 1; size <= kMaxRanks; ++size) {
    if (fits(size)) sizes.push_back(size);
  }
  return absl::StrCat("use one of ", absl::StrJoin(sizes, ", "));
}

// Checks that the ranks of one replica can share a transformer evenly. The leaves decide: a rank
// has whole ones. Sums of leaves are trees, so their number is a power of two.
void CheckSplits(const Parallelism& p, const model::ModelConfig& model, Rules& rules) {
  const bool named = p.tensor_leaves > 0;
  const int leaves = named ? p.tensor_leaves : p.tensor;
  const auto splits_kv_heads = [&](int size) {
    return model.kv_heads % size == 0 || size % model.kv_heads == 0;
  };
  const auto check_leaves = [&](bool fits, std::string rule) {
    const auto all_fit = [&](int size) {
      return std::has_single_bit(static_cast<unsigned>(size)) && model.heads % size == 0 &&
             splits_kv_heads(size) && model.inner % size == 0 && model.context % size == 0;
    };
    rules.Check(fits, {.field = named ? "parallelism.tensor_leaves" : "parallelism.tensor",
                       .value = absl::StrCat(leaves),
                       .rule = std::move(rule),
                       .fix = fits ? "" : UseOneThatFits(all_fit)});
  };
  check_leaves(std::has_single_bit(static_cast<unsigned>(leaves)), "must be a power of two");
  check_leaves(model.heads % leaves == 0,
               absl::StrCat("must divide model.heads (", model.heads, ")"));
  check_leaves(splits_kv_heads(leaves), absl::StrCat("must divide model.kv_heads (", model.kv_heads,
                                                     ") or be a multiple of it"));
  check_leaves(model.inner % leaves == 0,
               absl::StrCat("must divide model.inner (", model.inner, ")"));
  rules.Check(leaves % p.tensor == 0,
              {.field = "parallelism.tensor",
               .value = absl::StrCat(p.tensor),
               .rule = absl::StrCat("must divide parallelism.tensor_leaves (", leaves, ")"),
               .fix = "change one of them"});
  check_leaves(model.context % leaves == 0,
               absl::StrCat("must divide model.context (", model.context, ")"));
}

void ReadAxes(const v1::ParallelismSpec& proto, JobSpec& job, Rules& rules) {
  Parallelism& p = job.parallelism;
  p.tensor_auto = proto.tensor() == kAutoNumber;
  if (proto.has_tensor() && !p.tensor_auto) p.tensor = proto.tensor();
  if (proto.has_context()) p.context = proto.context();
  if (proto.has_tensor_leaves() &&
      rules.Between("parallelism.tensor_leaves", proto.tensor_leaves(), 1, kMaxTensorRanks)) {
    p.tensor_leaves = proto.tensor_leaves();
  }
  if (proto.has_data_leaves() &&
      rules.Between("parallelism.data_leaves", proto.data_leaves(), 1, kMaxRanks)) {
    p.data_leaves = proto.data_leaves();
  }
  const bool tensor_ok = rules.Between("parallelism.tensor", p.tensor, 1, kMaxTensorRanks);
  const bool context_ok = rules.Between("parallelism.context", p.context, 1, kMaxRanks);
  if (!tensor_ok || !context_ok) return;
  const auto size = [](const std::optional<int>& asked) {
    return std::int64_t{std::clamp(asked.value_or(1), 1, kMaxRanks)};
  };
  const std::int64_t ranks = size(p.pipeline) * size(p.data) * p.context * p.tensor;
  rules.Check(ranks <= kMaxRanksOfAMesh,
              {.field = "parallelism",
               .value = absl::StrCat(ranks, " ranks"),
               .rule = absl::StrCat("pipeline x data x context x tensor must be at most ",
                                    kMaxRanksOfAMesh),
               .fix = "lower one of them"});
  const model::ModelConfig& model = job.model;
  const bool emulated = model.family == model::Family::kEmulated;
  const bool experts = model::HasExperts(model.family);
  const bool is_cut = !emulated && !experts && model.heads >= 1 && model.kv_heads >= 1 &&
                      model.inner >= 1 && model.context >= 1;
  if (is_cut) CheckSplits(p, model, rules);
  rules.Check(!experts || (p.tensor == 1 && p.tensor_leaves <= 1),
              {.field = p.tensor > 1 ? "parallelism.tensor" : "parallelism.tensor_leaves",
               .value = absl::StrCat(p.tensor > 1 ? p.tensor : p.tensor_leaves),
               .rule = "must be 1: ranks cannot share layers with experts yet",
               .fix = "use 1, and pipeline or data for more ranks"});
  rules.Check(emulated || (p.tensor == 1 && p.tensor_leaves <= 1) || !job.muon.has_value(),
              {.field = p.tensor > 1 ? "parallelism.tensor" : "parallelism.tensor_leaves",
               .value = absl::StrCat(p.tensor > 1 ? p.tensor : p.tensor_leaves),
               .rule = "splits the matrices, which optimizer.muon updates as wholes",
               .fix = "use 1, or another optimizer"});
  rules.Check(!emulated || p.tensor_leaves == 0, {.field = "parallelism.tensor_leaves",
                                                  .value = absl::StrCat(p.tensor_leaves),
                                                  .rule = "emulated layers compute no sums",
                                                  .fix = "remove it"});
  const model::TensorShare share{.size = p.tensor, .leaves = std::max(p.tensor, p.tensor_leaves)};
  for (FieldError& error : model::CheckContext(model, share, p.context))
    rules.Check(false, std::move(error));
}

void ReadExpertRanks(const v1::ParallelismSpec& proto, JobSpec& job, Rules& rules) {
  if (!proto.has_expert()) return;
  constexpr char kField[] = "parallelism.expert";
  const int expert = proto.expert();
  if (!rules.Between(kField, expert, 1, kMaxRanks) || expert == 1) return;
  job.parallelism.expert = expert;
  const auto must_divide = [&](const char* of, int number) {
    rules.Check(number % expert == 0, {.field = kField,
                                       .value = absl::StrCat(expert),
                                       .rule = absl::StrCat("must divide ", of, " (", number, ")"),
                                       .fix = "correct one of them"});
  };
  const std::optional<model::Mixture>& mixture = job.model.mixture;
  if (!rules.Check(mixture.has_value(), {.field = kField,
                                         .value = absl::StrCat(expert),
                                         .rule = "the model has no experts to share",
                                         .fix = "remove it"})) {
    return;
  }
  must_divide("model.experts.count", mixture->experts);
  if (job.parallelism.data_auto) {
    rules.Check(false, {.field = kField,
                        .value = absl::StrCat(expert),
                        .rule = "must divide parallelism.data, which is auto",
                        .fix = "name a number for parallelism.data"});
    return;
  }
  must_divide("parallelism.data", job.parallelism.data.value_or(1));
}

void ReadShard(const v1::ParallelismSpec& proto, JobSpec& job, Rules& rules) {
  constexpr char kField[] = "parallelism.shard";
  const v1::ShardMode mode = proto.shard();
  if (mode == v1::SHARD_MODE_UNSPECIFIED) return;
  const std::string value = NameOf(mode);
  if (!rules.Supported(kField, value, v1::ShardMode_IsValid(mode), "none, optimizer or parameters"))
    return;
  job.parallelism.shard = static_cast<Shard>(mode);
  if (mode == v1::SHARD_MODE_NONE) return;
  const bool known = rules.Check(
      mode != v1::SHARD_MODE_GRADIENTS,
      {.field = kField,
       .value = value,
       .rule = "gradients of all layers add up over the microbatches and are whole until the last "
               "one, so it would save little, and earlier sums would change the bits of losses",
       .fix = "use optimizer or parameters"});
  if (!known) return;
  const std::string& schedule = job.parallelism.schedule;
  rules.Check(!absl::StartsWith(schedule, "pipedream"),
              {.field = kField,
               .value = value,
               .rule = absl::StrCat("schedule ", Shown(schedule), " keeps whole old weights"),
               .fix = "use none, or a schedule that flushes"});
  rules.Check(!job.muon.has_value(),
              {.field = kField,
               .value = value,
               .rule = "cuts the matrices, which optimizer.muon updates as wholes",
               .fix = "use none, or another optimizer"});
  rules.Check(mode != v1::SHARD_MODE_PARAMETERS || !absl::StartsWith(schedule, "file:"),
              {.field = kField,
               .value = value,
               .rule = "a schedule's file does not say when weights are gathered",
               .fix = "use none or optimizer, or a schedule family"});
}

// The plan checks later whether the schedule leaves weights to free.
void ReadReshard(const v1::ParallelismSpec& proto, JobSpec& job, Rules& rules) {
  constexpr char kField[] = "parallelism.reshard_after_forward";
  const v1::ReshardMode mode = proto.reshard_after_forward();
  if (mode == v1::RESHARD_MODE_UNSPECIFIED) return;
  const std::string value = NameOf(mode);
  if (!rules.Supported(kField, value, v1::ReshardMode_IsValid(mode), "auto, always or never"))
    return;
  rules.Check(job.parallelism.shard == Shard::kParameters,
              {.field = kField,
               .value = value,
               .rule = "says when weights are freed that replicas share, and only shard: "
                       "parameters shares them",
               .fix = "remove it, or use shard: parameters"});
  job.parallelism.reshard = static_cast<Reshard>(mode);
}

}  // namespace

void ReadParallelism(const v1::ParallelismSpec& proto, JobSpec& job, SpecRules& rules) {
  Parallelism& p = job.parallelism;
  p.pipeline = Optional(proto.has_pipeline(), proto.pipeline());
  p.data_auto = proto.data() == kAutoNumber;
  p.data = Optional(proto.has_data() && !p.data_auto, proto.data());
  p.chunks = Optional(proto.has_chunks(), proto.chunks());
  p.threads = Optional(proto.has_threads(), proto.threads());
  p.group = Optional(proto.has_group(), proto.group());
  if (proto.has_schedule()) p.schedule = proto.schedule();
  p.schedule_csv = proto.schedule_csv();
  p.stage_layers.assign(proto.stage_layers().begin(), proto.stage_layers().end());
  p.transport = static_cast<TransportKind>(proto.transport());
  p.device = static_cast<DeviceKind>(proto.device());
  bool sizes_ok = true;
  const auto check = [&](const char* field, const std::optional<int>& value, int most) {
    if (value.has_value()) sizes_ok &= rules.Between(field, *value, 1, most);
  };
  check("parallelism.pipeline", p.pipeline, kMaxRanks);
  check("parallelism.data", p.data, kMaxRanks);
  check("parallelism.chunks", p.chunks, kMaxRanks);
  check("parallelism.group", p.group, kMaxMicrobatches);
  check("parallelism.threads", p.threads, kMaxThreads);
  if (sizes_ok && job.model.layers >= 1) CheckStages(p, job.model, rules);
  rules.Check(!p.schedule.starts_with("file:") || !p.schedule_csv.empty(),
              {.field = "parallelism.schedule",
               .value = Shown(p.schedule),
               .rule = "names a file whose text did not come with the job",
               .fix = "submit with takt, and check that the file is not empty"});
  CheckDevice(proto, job, rules);
  ReadRecompute(proto, job, rules);
  ReadVocabulary(proto, job, rules);
  ReadAxes(proto, job, rules);
  ReadExpertRanks(proto, job, rules);
  ReadShard(proto, job, rules);
  ReadReshard(proto, job, rules);
}

}  // namespace takt::config
