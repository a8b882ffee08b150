// SPDX-License-Identifier: Apache-2.0
#include "common/config/elastic_field.h"

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "takt/v1/job_spec.pb.h"

namespace takt::config {
namespace {

constexpr int kMostRanks = 4096;  // as of a size that parallelism names

std::string Shown(const SizeRange& range) { return absl::StrCat(range.min, " to ", range.max); }

// Returns nullopt if the range itself is wrong.
std::optional<SizeRange> ReadRange(const std::string& field, const v1::SizeRange& proto,
                                   FieldRules& rules) {
  const SizeRange range{.min = proto.min(), .max = proto.max()};
  const std::string least = absl::StrCat(field, ".min"), most = absl::StrCat(field, ".max");
  const bool least_ok = rules.Between(least.c_str(), range.min, 1, kMostRanks);
  const bool most_ok = rules.Between(most.c_str(), range.max, 1, kMostRanks);
  if (!least_ok || !most_ok) return std::nullopt;
  const bool ordered = rules.Check(
      range.min <= range.max, {.field = least,
                               .value = absl::StrCat(range.min),
                               .rule = absl::StrCat("must be at most ", most, " (", range.max, ")"),
                               .fix = "correct one of them"});
  return ordered ? std::optional(range) : std::nullopt;
}

// Checks the number with which the job begins, if it names one.
void CheckBegin(const std::string& axis, const std::optional<int>& named, const SizeRange& range,
                FieldRules& rules) {
  if (!named.has_value()) return;
  rules.Check(range.Contains(*named),
              {.field = absl::StrCat("parallelism.", axis),
               .value = absl::StrCat(*named),
               .rule = absl::StrCat("must be within elastic.", axis, " (", Shown(range),
                                    "), since the job begins with it"),
               .fix = "change one of them, or leave it out: the plan chooses"});
}

void CheckData(const JobSpec& job, const SizeRange& range, FieldRules& rules) {
  bool divides = false;
  for (int size = range.min; size <= range.max && !divides; ++size)
    divides = job.DividesBatch(size);
  const std::int64_t per_step = job.global_batch / job.microbatch;
  rules.Check(divides,
              {.field = "elastic.data",
               .value = Shown(range),
               .rule = absl::StrCat("must have a number of replicas that divides batch.global / "
                                    "batch.microbatch = ",
                                    per_step),
               .fix = absl::StrCat(
                   "use a range with one of its divisors, e.g. {min: 1, max: ", per_step, "}")});
}

// The layers must suffice for the smallest pipeline. With `stage_layers`, the stages must be
// divisible over the ranks of some pipeline.
void CheckPipeline(const JobSpec& job, const SizeRange& range, FieldRules& rules) {
  const Parallelism& p = job.parallelism;
  const int ends = job.model.family == model::Family::kEmulated ? 0 : 2;
  const std::int64_t chunks = p.chunks.value_or(1), stages = chunks * range.min;
  const std::int64_t most = std::int64_t{job.model.layers} + ends;
  rules.Check(stages <= most, {.field = "elastic.pipeline.min",
                               .value = absl::StrCat(range.min),
                               .rule = absl::StrCat("x chunks (", chunks, ") makes ", stages,
                                                    " stages; must be at most model.layers",
                                                    ends == 0 ? "" : " + 2", " (", most, ")"),
                               .fix = "lower it, or use fewer chunks or more layers"});
  if (p.stage_layers.empty()) return;
  const auto given = static_cast<std::int64_t>(p.stage_layers.size());
  bool fits = false;
  for (int size = range.min; size <= range.max && !fits; ++size)
    fits = p.chunks.has_value() ? given == size * chunks : given % size == 0;
  rules.Check(fits, {.field = "elastic.pipeline",
                     .value = Shown(range),
                     .rule = absl::StrCat("must have a number of ranks for the ", given,
                                          " stages of parallelism.stage_layers"),
                     .fix = "widen it, or leave stage_layers out"});
}

void CheckSchedule(const std::string& field, const SizeRange& range, const JobSpec& job,
                   FieldRules& rules) {
  rules.Check(!job.parallelism.schedule.starts_with("file:"),
              {.field = field,
               .value = Shown(range),
               .rule = "cannot be changed with a schedule's file, which has one number of ranks "
                       "and of microbatches",
               .fix = "remove it, or use another schedule"});
}

}  // namespace

void ReadElastic(const v1::JobSpec& proto, JobSpec& job, FieldRules& rules) {
  if (!proto.has_elastic()) return;
  const v1::ElasticSpec& elastic = proto.elastic();
  job.elastic.evict_stragglers = elastic.evict_stragglers();
  rules.Check(job.checkpoint.has_value() || job.copy_every_steps != 0,
              {.field = "elastic",
               .rule = "needs a checkpoint section, because the job goes on from its state with "
                       "other workers",
               .fix = "add checkpoint: {in_memory: auto}, or one with a directory"});
  if (elastic.has_data()) job.elastic.data = ReadRange("elastic.data", elastic.data(), rules);
  if (elastic.has_pipeline())
    job.elastic.pipeline = ReadRange("elastic.pipeline", elastic.pipeline(), rules);
  if (const std::optional<SizeRange>& range = job.elastic.data) {
    rules.Check(job.parallelism.expert == 1,
                {.field = "elastic.data",
                 .value = Shown(*range),
                 .rule = "cannot be changed where replicas share experts (parallelism.expert)",
                 .fix = "remove it, or use expert: 1"});
    CheckSchedule("elastic.data", *range, job, rules);
    CheckBegin("data", job.parallelism.data, *range, rules);
    const bool has_leaves = job.parallelism.data_leaves > 0;  // CheckDataLeaves has their rules
    if (!has_leaves && job.global_batch >= 1 && job.microbatch >= 1) CheckData(job, *range, rules);
  }
  if (const std::optional<SizeRange>& range = job.elastic.pipeline) {
    CheckSchedule("elastic.pipeline", *range, job, rules);
    CheckBegin("pipeline", job.parallelism.pipeline, *range, rules);
    if (job.model.layers >= 1) CheckPipeline(job, *range, rules);
  }
}

}  // namespace takt::config
