// SPDX-License-Identifier: Apache-2.0
#include "cli/schedule_source.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/job_input.h"
#include "common/base/status.h"
#include "common/schedule/generate.h"
#include "common/schedule/text.h"

namespace takt::cli {
namespace {

constexpr std::size_t kLargestScheduleFile = std::size_t{256} << 20;

bool NamesFile(const std::string& name) {
  return absl::EndsWith(name, ".csv") || absl::StrContains(name, "/");
}

// A size of the file that the command line states as well.
absl::Status CheckStated(const char* option, std::optional<int> stated, int found) {
  if (!stated.has_value() || *stated == found) return absl::OkStatus();
  return InvalidField({.field = option,
                       .value = absl::StrCat(*stated),
                       .rule = absl::StrCat("must agree with the file, which has ", found),
                       .fix = "leave it out"});
}

absl::Status CheckSizesGiven(const ScheduleSource& source) {
  std::vector<FieldError> errors;
  for (const auto& [option, value] :
       {std::pair("--ranks", source.ranks), std::pair("--microbatches", source.microbatches)}) {
    if (value.has_value()) continue;
    errors.push_back({.field = option,
                      .rule = absl::StrCat("must be given to generate ", source.name),
                      .fix = absl::StrCat("add ", option, " N, or name a .csv file")});
  }
  return errors.empty() ? absl::OkStatus() : InvalidFields(std::move(errors));
}

absl::StatusOr<schedule::Schedule> GenerateFamily(const ScheduleSource& source) {
  RETURN_IF_ERROR(CheckSizesGiven(source));
  absl::StatusOr<schedule::Schedule> made =
      schedule::Generate(source.name, {.num_ranks = *source.ranks,
                                       .num_microbatches = *source.microbatches,
                                       .num_chunks = source.chunks,
                                       .group = source.group});
  if (absl::IsNotFound(made.status())) {
    return InvalidField({.field = "NAME",
                         .value = source.name,
                         .rule = std::string(made.status().message()),
                         .fix = "see takt schedule list; a file's name ends in .csv"});
  }
  return made;
}

}  // namespace

void DeclareScheduleSource(CLI::App& command, ScheduleSource& source) {
  command.add_option("NAME", source.name, "Family (see takt schedule list) or file")
      ->type_name("NAME|FILE.csv")
      ->required();
  command.add_option("--ranks", source.ranks, "Ranks of the pipeline (P)")
      ->type_name("P")
      ->check(CLI::PositiveNumber);
  command.add_option("--microbatches", source.microbatches, "Microbatches of a step (M)")
      ->type_name("M")
      ->check(CLI::PositiveNumber);
  command.add_option("--chunks", source.chunks, "Stages of a rank (V); default: the family's own")
      ->type_name("V")
      ->check(CLI::PositiveNumber);
  command
      .add_option("--group", source.group,
                  "Microbatches of a group in interleaved families; default: P")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  command
      .add_option("--placement", source.placement,
                  "Stages on ranks, for a file; default: as its rows show")
      ->check(CLI::IsMember({"loop", "v"}));
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
    schedule.placement = placement == "v" ? schedule::Placement::kV : schedule::Placement::kLoop;
  }
  return schedule;
}

absl::StatusOr<schedule::Schedule> LoadSchedule(const ScheduleSource& source) {
  if (!NamesFile(source.name)) return GenerateFamily(source);
  ASSIGN_OR_RETURN(const std::string text, ReadScheduleFile(source.name));
  ASSIGN_OR_RETURN(schedule::Schedule schedule, ParseSchedule(text, source.name, source.placement));
  RETURN_IF_ERROR(CheckStated("--ranks", source.ranks, schedule.num_ranks()));
  RETURN_IF_ERROR(CheckStated("--microbatches", source.microbatches, schedule.num_microbatches));
  return schedule;
}

}  // namespace takt::cli
