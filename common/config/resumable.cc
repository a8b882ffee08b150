// SPDX-License-Identifier: Apache-2.0
#include "common/config/resumable.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/config/file_names.h"
#include "common/config/job_file.h"
#include "common/config/job_spec_serde.h"
#include "nlohmann/json.hpp"
#include "takt/v1/job_spec.pb.h"

namespace takt::config {
namespace {

constexpr std::array kMayDiffer = {"name",
                                   "steps",
                                   "parallelism",
                                   "checkpoint",
                                   "logging",
                                   "exact",
                                   "priority",
                                   "replan",
                                   "elastic",
                                   "data.validation",
                                   "model.init_from",
                                   "model.hf_config",
                                   "optimizer.barrier"};

bool MayDiffer(const std::string& field) {
  return std::ranges::any_of(kMayDiffer, [&](const std::string& section) {
    return field == section || absl::StartsWith(field, section + ".");
  });
}

// Returns the fields by dotted path, with all defaults spelled out.
std::map<std::string, std::string> Fields(const JobSpec& job) {
  std::map<std::string, std::string> fields;
  const auto flat = nlohmann::json::parse(FormatJobFile(ToProto(job))).flatten();
  for (const auto& [pointer, value] : flat.items()) {
    std::string field = pointer.substr(1);  // "/model/layers"
    std::ranges::replace(field, '/', '.');
    if (!MayDiffer(field)) fields[std::move(field)] = value.dump();
  }
  return fields;
}

// Returns the value of a field that a job file leaves out: what the proto means by that, or "none".
std::string LeftOut(const std::string& path) {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Descriptor* type = v1::JobSpec::descriptor();
  const FieldDescriptor* field = nullptr;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(path, '.'))) {
    if (std::ranges::all_of(part, absl::ascii_isdigit)) continue;  // an element of the list
    field = nullptr;
    for (int i = 0; type != nullptr && i < type->field_count(); ++i) {
      if (FileName(*type->field(i)) == part) field = type->field(i);
    }
    if (field == nullptr) return "none";
    type = field->message_type();
  }
  if (field == nullptr || field->is_repeated() || field->has_presence()) return "none";
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return "false";
    case FieldDescriptor::CPPTYPE_ENUM:
    case FieldDescriptor::CPPTYPE_STRING:
      return "none";
    default:
      return "0";
  }
}

// Drops the fields whose paths begin with `prefix`.
void DropSection(const std::string& prefix, std::map<std::string, std::string>& fields) {
  std::erase_if(fields, [&](const auto& field) { return absl::StartsWith(field.first, prefix); });
}

// Returns the field by which the schedule of learning rates ends with the job, as it does where the
// job's file leaves that field out, or "" if it ends elsewhere or nowhere.
std::string FieldThatFollowsSteps(const JobSpec& job) {
  const LrSchedule& schedule = job.lr_schedule;
  const std::int64_t last = std::max(job.steps, schedule.warmup_steps);
  switch (schedule.decay) {
    case LrDecay::kCosine:
    case LrDecay::kLinear:
      return schedule.decay_steps == last ? "optimizer.lr_schedule.decay_steps" : "";
    case LrDecay::kWsd: {
      const std::int64_t stable = last - schedule.warmup_steps - schedule.decay_steps;
      return schedule.stable_steps == stable ? "optimizer.lr_schedule.stable_steps" : "";
    }
    case LrDecay::kConstant:
    case LrDecay::kInverseSqrt:
      return "";
  }
  return "";
}

absl::StatusOr<JobSpec> ParseSaved(std::string_view saved) {
  ASSIGN_OR_RETURN(const v1::JobSpec spec, ParseJobFile(saved, {.name = "job_spec"}));
  return ToJobSpec(spec);
}

}  // namespace

absl::Status CheckResumes(const JobSpec& job, std::string_view saved) {
  const absl::StatusOr<JobSpec> before = ParseSaved(saved);
  if (!before.ok()) return Annotate(before.status(), "the checkpoint's job_spec");
  std::map<std::string, std::string> was = Fields(*before);
  std::vector<FieldError> errors;
  const auto add = [&](const std::string& field, const std::string& now, const std::string& then) {
    errors.push_back({.field = field,
                      .value = now,
                      .rule = absl::StrCat("the checkpoint is of a job with ", then),
                      .fix = "set it back, or save to another checkpoint.directory"});
  };
  std::map<std::string, std::string> is = Fields(job);
  // The moments of one optimizer mean nothing to another.
  const std::string optimizer = TraitsOf(job).name, saved_one = TraitsOf(*before).name;
  if (optimizer != saved_one) {
    errors.push_back(
        {.field = "optimizer",
         .value = optimizer,
         .rule = absl::StrCat("the checkpoint is of a job with ", saved_one, ", whose moments ",
                              optimizer, " cannot use"),
         .fix = absl::StrCat("use ", saved_one,
                             " again, or save to another checkpoint.directory and start from the "
                             "weights by model.init_from")});
    DropSection(absl::StrCat("optimizer.", optimizer, "."), is);
    DropSection(absl::StrCat("optimizer.", saved_one, "."), was);
  }
  const std::string follows = FieldThatFollowsSteps(job);
  if (!follows.empty() && follows == FieldThatFollowsSteps(*before)) {
    is.erase(follows);
    was.erase(follows);
  }
  for (const auto& [field, value] : is) {
    const auto it = was.find(field);
    const std::string then = it == was.end() ? LeftOut(field) : it->second;
    if (then != value) add(field, value, then);
    if (it != was.end()) was.erase(it);
  }
  for (const auto& [field, value] : was) add(field, LeftOut(field), value);
  return errors.empty() ? absl::OkStatus() : InvalidFields(std::move(errors));
}

}  // namespace takt::config
