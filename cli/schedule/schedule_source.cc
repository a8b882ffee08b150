// SPDX-License-Identifier: Apache-2.0
#include "cli/schedule/schedule_source.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/base/input_file.h"
#include "common/base/counted.h"
#include "common/base/status.h"
#include "common/schedule/generate.h"
#include "common/schedule/text.h"
#include "common/search/search.h"

namespace takt::cli {
namespace {

constexpr std::size_t kLargestScheduleFile = std::size_t{256} << 20;

bool NamesFile(const std::string& name) {
  return absl::EndsWith(name, ".csv") || absl::StrContains(name, "/");
}

schedule::Placement PlacementOf(std::string_view name) {
  if (name == "v") return schedule::Placement::kV;
  return name == "bidirectional" ? schedule::Placement::kBidirectional : schedule::Placement::kLoop;
}

// Checks a size of the file that the command line states as well.
absl::Status CheckStated(const char* option, std::optional<std::int64_t> stated, int found) {
  if (!stated.has_value() || *stated == found) return absl::OkStatus();
  return InvalidField({.field = option,
                       .value = absl::StrCat(*stated),
                       .rule = absl::StrCat("must agree with the file, which has ", found),
                       .fix = "leave it out"});
}

// Checks that a size is from 1 to kMaxActions. Larger ones fit no schedule, and products of two
// such sizes do not overflow.
void CheckSize(const char* option, std::optional<std::int64_t> value,
               std::vector<FieldError>& errors) {
  if (!value.has_value() || (*value >= 1 && *value <= schedule::kMaxActions)) return;
  errors.push_back({.field = option,
                    .value = absl::StrCat(*value),
                    .rule = absl::StrCat("must be from 1 to ", schedule::kMaxActions),
                    .fix = *value < 1 ? "give a positive number" : "give a smaller number"});
}

std::vector<FieldError> SizeErrors(const ScheduleSizes& sizes) {
  std::vector<FieldError> errors;
  CheckSize("--ranks", sizes.ranks, errors);
  CheckSize("--microbatches", sizes.microbatches, errors);
  CheckSize("--chunks", sizes.chunks, errors);
  CheckSize("--group", sizes.group, errors);
  CheckSize("--memory", sizes.memory, errors);
  return errors;
}

// Renames the fields of a generator's errors to the options of the command line.
absl::Status NameOptions(const absl::Status& status) {
  std::vector<FieldError> errors = FieldErrorsOf(status);
  if (errors.empty()) return status;
  for (FieldError& error : errors) error.field = absl::StrCat("--", error.field);
  return InvalidFields(std::move(errors));
}

absl::StatusOr<schedule::Schedule> GenerateFamily(const ScheduleSource& source,
                                                  const cost::Costs& costs) {
  ASSIGN_OR_RETURN(const schedule::GenerateOptions options,
                   MakeGenerateOptions(source.sizes, costs));
  const absl::StatusOr<schedule::Schedule> made = schedule::Generate(source.name, options);
  if (absl::IsNotFound(made.status())) {
    const std::string names =
        absl::StrJoin(schedule::Families(), ", ",
                      [](std::string* out, const auto& family) { out->append(family.name); });
    return InvalidField({.field = "NAME",
                         .value = source.name,
                         .rule = absl::StrCat("must be one of auto, ", names),
                         .fix = "see takt schedule list; a file's name ends in .csv"});
  }
  RETURN_IF_ERROR(NameOptions(made.status()));
  const std::string_view placed = schedule::PlacementName(made->placement);
  if (!source.placement.empty() && source.placement != placed) {
    return InvalidField(
        {.field = "--placement",
         .value = source.placement,
         .rule = absl::StrCat(source.name, " places its stages as ", std::string(placed)),
         .fix = "leave it out"});
  }
  return made;
}

absl::StatusOr<LoadedSchedule> FindSchedule(const ScheduleSource& source, const StepCosts& costs) {
  ASSIGN_OR_RETURN(const schedule::GenerateOptions sizes,
                   MakeGenerateOptions(source.sizes, costs.time));
  search::Request request{.num_ranks = sizes.num_ranks,
                          .num_microbatches = sizes.num_microbatches,
                          .costs = costs.time};
  if (sizes.num_chunks.has_value()) request.num_chunks = {*sizes.num_chunks};
  if (!source.placement.empty()) request.placements = {PlacementOf(source.placement)};
  if (sizes.memory.has_value()) request.max_in_flight = {*sizes.memory};
  if (costs.output_bytes.size() > 1) request.message_bytes = costs.output_bytes;
  absl::StatusOr<search::Found> found = search::Search(request);
  RETURN_IF_ERROR(NameOptions(found.status()));
  return LoadedSchedule{
      .schedule = std::move(found->schedule),
      .remark = absl::StrCat("auto: best of ", Counted(found->num_candidates, "candidate"),
                             ", grown from ", found->origin, "; what holds it above the work: ",
                             std::string(schedule::BindingName(found->bound.binds)),
                             found->time_capped ? "; the clock ended the search" : "")};
}

}  // namespace

void DeclareScheduleSizes(CLI::App& command, ScheduleSizes& sizes) {
  command.add_option("--ranks", sizes.ranks, "Ranks of the pipeline (P)")->type_name("P");
  command.add_option("--microbatches", sizes.microbatches, "Microbatches of a step (M)")
      ->type_name("M");
  command.add_option("--chunks", sizes.chunks, "Stages of a rank (V); default: the family's own")
      ->type_name("V");
  command
      .add_option(
          "--group", sizes.group,
          "Microbatches of a group in interleaved families; default: the smallest that fits")
      ->type_name("N");
  command
      .add_option("--memory", sizes.memory,
                  "Microbatch-chunks that a rank may hold in flight; default: no limit")
      ->type_name("K");
}

void DeclareScheduleSource(CLI::App& command, ScheduleSource& source) {
  command
      .add_option("NAME", source.name,
                  "Family (see takt schedule list), auto (searched for the costs), or file")
      ->type_name("NAME|auto|FILE.csv")
      ->required();
  DeclareScheduleSizes(command, source.sizes);
  command
      .add_option("--placement", source.placement,
                  "Stages on ranks; default: the family's own, or as the rows of the file show")
      ->check(CLI::IsMember({"loop", "v", "bidirectional"}));
}

absl::StatusOr<schedule::GenerateOptions> MakeGenerateOptions(const ScheduleSizes& sizes,
                                                              const cost::Costs& costs) {
  std::vector<FieldError> errors = SizeErrors(sizes);
  for (const auto& [option, value] :
       {std::pair("--ranks", sizes.ranks), std::pair("--microbatches", sizes.microbatches)}) {
    if (value.has_value()) continue;
    errors.push_back({.field = option,
                      .rule = "must be given to generate a schedule",
                      .fix = absl::StrCat("add ", option, " N, or name a .csv file")});
  }
  if (!errors.empty()) return InvalidFields(std::move(errors));
  const auto size = [](std::optional<std::int64_t> value) {
    return value.has_value() ? std::optional(static_cast<int>(*value)) : std::nullopt;
  };
  return schedule::GenerateOptions{.num_ranks = *size(sizes.ranks),
                                   .num_microbatches = *size(sizes.microbatches),
                                   .num_chunks = size(sizes.chunks),
                                   .group = size(sizes.group),
                                   .costs = costs,
                                   .memory = size(sizes.memory)};
}

absl::StatusOr<std::string> ReadScheduleFile(const std::string& path) {
  return ReadInputFile(path, "FILE.csv", kLargestScheduleFile);
}

absl::StatusOr<schedule::Schedule> ParseSchedule(const std::string& text, const std::string& path,
                                                 const std::string& placement) {
  ASSIGN_OR_RETURN(schedule::Schedule schedule, schedule::ParseCsv(text, path));
  if (placement.empty()) {
    ASSIGN_OR_RETURN(schedule.placement, schedule::InferPlacement(schedule));
  } else {
    schedule.placement = PlacementOf(placement);
  }
  return schedule;
}

absl::StatusOr<LoadedSchedule> LoadSchedule(const ScheduleSource& source, const StepCosts& costs) {
  if (source.name == "auto") return FindSchedule(source, costs);
  LoadedSchedule loaded;
  if (!NamesFile(source.name)) {
    ASSIGN_OR_RETURN(loaded.schedule, GenerateFamily(source, costs.time));
    return loaded;
  }
  if (std::vector<FieldError> errors = SizeErrors(source.sizes); !errors.empty()) {
    return InvalidFields(std::move(errors));
  }
  ASSIGN_OR_RETURN(const std::string text, ReadScheduleFile(source.name));
  ASSIGN_OR_RETURN(loaded.schedule, ParseSchedule(text, source.name, source.placement));
  const schedule::Schedule& schedule = loaded.schedule;
  RETURN_IF_ERROR(CheckStated("--ranks", source.sizes.ranks, schedule.num_ranks()));
  RETURN_IF_ERROR(
      CheckStated("--microbatches", source.sizes.microbatches, schedule.num_microbatches));
  return loaded;
}

}  // namespace takt::cli
