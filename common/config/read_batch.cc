// SPDX-License-Identifier: Apache-2.0
#include "common/config/read_batch.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/field_rules.h"
#include "common/config/file_names.h"
#include "takt/v1/job_spec.pb.h"

namespace takt::config {
namespace {

constexpr int kMaxBatch = 1 << 24;

// Checks what says `auto`: there must be a choice.
void CheckAuto(const v1::JobSpec& proto, const JobSpec& job, FieldRules& rules) {
  const auto must_be_named = [&](const char* field, bool is_auto, const char* why) {
    rules.Check(!is_auto, {.field = field,
                           .value = "auto",
                           .rule = absl::StrCat("must be a number ", why),
                           .fix = "name it"});
  };
  if (job.model.family == model::Family::kEmulated) {
    must_be_named("batch.microbatch", job.microbatch_auto,
                  "with an emulated model, whose layers take as long for microbatches of any size");
  }
  if (absl::StartsWith(proto.parallelism().schedule(), "file:")) {
    constexpr char kWhy[] = "with a schedule's file, which says how many microbatches there are";
    must_be_named("batch.microbatch", job.microbatch_auto, kWhy);
    must_be_named("parallelism.data", proto.parallelism().data() == kAutoNumber, kWhy);
  }
}

}  // namespace

void ReadBatch(const v1::JobSpec& proto, JobSpec& job, FieldRules& rules) {
  const v1::BatchSpec& batch = proto.batch();
  const std::int32_t asked_data = proto.parallelism().data();
  const bool data_auto = asked_data == kAutoNumber;
  job.global_batch = batch.global();
  job.microbatch_auto = batch.microbatch() == kAutoNumber;
  job.microbatch = job.microbatch_auto ? 1 : batch.microbatch();
  CheckAuto(proto, job, rules);
  const bool global_ok = rules.Between("batch.global", job.global_batch, 1, kMaxBatch);
  const bool microbatch_ok = rules.Between("batch.microbatch", job.microbatch, 1, kMaxBatch);
  if (!global_ok || !microbatch_ok) return;
  const std::int64_t data = proto.parallelism().has_data() && !data_auto ? asked_data : 1;
  if (data < 1) return;  // ReadParallelism reports this
  const std::int64_t part = job.microbatch * data;
  const std::int64_t above = (job.global_batch + part - 1) / part * part;
  std::vector<std::string> factors;  // what is `auto` divides whatever is left
  if (!job.microbatch_auto)
    factors.push_back(absl::StrCat("batch.microbatch (", job.microbatch, ")"));
  if (!data_auto) factors.push_back(absl::StrCat("parallelism.data (", data, ")"));
  const bool divides = rules.Check(
      job.DividesBatch(data),
      {.field = "batch.global",
       .value = absl::StrCat(job.global_batch),
       .rule = absl::StrCat("must be divisible by ", absl::StrJoin(factors, " x "),
                            factors.size() > 1 ? absl::StrCat(" = ", part) : ""),
       .fix = absl::StrCat("use ", above > part ? absl::StrCat(above - part, " or ", above)
                                                : absl::StrCat(above))});
  if (!divides || job.microbatch_auto || data_auto) return;
  rules.Check(
      job.global_batch / part <= kMaxMicrobatches,
      {.field = "batch.microbatch",
       .value = absl::StrCat(job.microbatch),
       .rule = absl::StrCat("makes ", job.global_batch / part, " microbatches a step; at most ",
                            kMaxMicrobatches, " are possible"),
       .fix = "use larger microbatches"});
}

}  // namespace takt::config
