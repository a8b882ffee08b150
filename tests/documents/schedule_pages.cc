// SPDX-License-Identifier: Apache-2.0
#include "tests/documents/schedule_pages.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "cli/schedule/simulated_schedule.h"
#include "common/base/status.h"
#include "common/schedule/generate.h"

namespace takt::documents {
namespace {

// Sizes of the pictures: small enough for a page, large enough for all phases of every family.
constexpr int kPictureRanks = 4, kPictureMicrobatches = 8;

struct Setting {
  int ranks, microbatches;
};
constexpr Setting kSettings[] = {{4, 8}, {8, 16}, {8, 32}};

cli::StepCosts EqualCosts() { return {}; }

cli::StepCosts SkewedCosts() {
  cli::StepCosts costs;
  costs.time.forward = {1};
  costs.time.input_grad = {1.1};
  costs.time.weight_grad = {0.7};
  costs.time.backward = {1.8};
  costs.time.link.latency = 0.1;
  return costs;
}

constexpr std::string_view kCostsText =
    "Costs: *equal* F = I = W = 1 and B = 2, messages free; *skewed* F = 1, I = 1.1, W = 0.7, "
    "B = 1.8, a message 0.1. An overlapped pair takes F + B.";

absl::StatusOr<cli::SimulatedSchedule> Simulated(const schedule::Family& family, Setting setting,
                                                 const cli::StepCosts& costs) {
  ASSIGN_OR_RETURN(const schedule::Schedule schedule,
                   schedule::Generate(family.name, {.num_ranks = setting.ranks,
                                                    .num_microbatches = setting.microbatches,
                                                    .costs = costs.time}));
  return cli::SimulateSchedule(schedule, costs, {});
}

// A paragraph in lines of at most 120 columns.
std::string Paragraph(std::string_view text) {
  std::string lines;
  std::size_t column = 0;
  for (const absl::string_view word : absl::StrSplit(std::string(text), ' ')) {
    const bool fits = column + 1 + word.size() <= 120;
    if (!lines.empty()) lines += fits ? " " : "\n";
    column = lines.empty() || !fits ? word.size() : column + 1 + word.size();
    absl::StrAppend(&lines, word);
  }
  return lines + "\n";
}

std::string Percent(double fraction) { return absl::StrFormat("%.2f %%", 100 * fraction); }

std::string BackwardOf(const schedule::Family& family) {
  std::string text = family.splits_backward ? "split into I and W" : "whole (B)";
  if (family.overlaps) absl::StrAppend(&text, ", pairs of F and B overlapped");
  return text;
}

// One line of the table of figures.
absl::StatusOr<std::string> FiguresLine(const schedule::Family& family, Setting setting,
                                        std::string_view costs_name, const cli::StepCosts& costs) {
  ASSIGN_OR_RETURN(const cli::SimulatedSchedule simulated, Simulated(family, setting, costs));
  const sim::Report& report = simulated.report;
  return absl::StrFormat("| %d | %d | %s | %.5g | %s | %s | %d | %d | %s |\n", setting.ranks,
                         setting.microbatches, std::string(costs_name), report.makespan,
                         Percent(report.bubble_fraction), Percent(report.span_bubble_fraction),
                         report.peak_in_flight(), report.num_messages, Percent(simulated.gap()));
}

absl::StatusOr<std::string> FiguresTable(const schedule::Family& family) {
  std::string table =
      "| P | M | costs | makespan | bubble | bubble of the longest rank | peak | messages | above "
      "the "
      "bound |\n|---|---|---|---|---|---|---|---|---|\n";
  for (const Setting setting : kSettings) {
    ASSIGN_OR_RETURN(const std::string equal, FiguresLine(family, setting, "equal", EqualCosts()));
    ASSIGN_OR_RETURN(const std::string skewed,
                     FiguresLine(family, setting, "skewed", SkewedCosts()));
    absl::StrAppend(&table, equal, skewed);
  }
  return absl::StrCat(table, "\n", Paragraph(kCostsText));
}

absl::StatusOr<std::string> FamilyPage(const schedule::Family& family) {
  const std::string name(family.name);
  std::string page =
      absl::StrCat("# ", name, "\n\n", "Made by `schedule_documents`; do not edit.\n\n", "![", name,
                   " with ", kPictureRanks, " ranks and ", kPictureMicrobatches, " microbatches](",
                   name, ".svg)\n\n", Paragraph(family.idea), "\n");
  const std::string chunks = family.uses_chunks ? "; V is 2 unless given" : "";
  absl::StrAppend(&page, "| | |\n|---|---|\n| Sizes | ", std::string(family.sizes), chunks,
                  " |\n| Placement | ", std::string(schedule::PlacementName(family.placement)),
                  " |\n| Backward | ", BackwardOf(family), " |\n| Idle of a rank | ",
                  std::string(family.bubble), " |\n| In flight on rank r, chunks | ",
                  std::string(family.peak), " |\n| Source | ", std::string(family.reference),
                  " |\n\n");
  if (!family.care.empty()) {
    absl::StrAppend(&page, Paragraph(absl::StrCat("**Take care.** ", std::string(family.care))),
                    "\n");
  }
  if (family.updates == schedule::Updates::kFlush) {
    ASSIGN_OR_RETURN(const std::string table, FiguresTable(family));
    absl::StrAppend(&page, table);
  } else {
    absl::StrAppend(
        &page,
        Paragraph("Its steps run into each other: one of them has no makespan of its own, and the "
                  "picture shows one body of the program, begun on all ranks at once. In a row of "
                  "them a step takes as long as the work of the busiest rank."));
  }
  absl::StrAppend(&page, "\n```\ntakt schedule show ", name, " --ranks ", kPictureRanks,
                  " --microbatches ", kPictureMicrobatches, " -f svg > ", name, ".svg\n```\n");
  return page;
}

absl::StatusOr<std::string> Index() {
  constexpr Setting kSetting{8, 32};
  std::string page = absl::StrCat(
      "# Schedule families\n\n",
      Paragraph("Made by `schedule_documents`; do not edit. [schedules.md](../schedules.md) says "
                "what the words mean and where texts differ."),
      "\n",
      Paragraph(absl::StrCat(
          "P = ", kSetting.ranks, ", M = ", kSetting.microbatches,
          "; V of interleaved families is 2. ", std::string(kCostsText),
          " Bubbles are shares of the makespan, with a barrier at the end of the step; the peak is "
          "in chunks.")),
      "\n| Family | V | bubble, equal | bubble, skewed | peak | messages | |\n"
      "|---|---|---|---|---|---|---|\n");
  for (const schedule::Family& family : schedule::Families()) {
    const std::string name(family.name);
    if (family.updates != schedule::Updates::kFlush) {
      absl::StrAppend(&page, "| [", name, "](", name, ".md) | ", family.num_chunks,
                      " | no flush | no flush | | | ", std::string(family.summary), " |\n");
      continue;
    }
    ASSIGN_OR_RETURN(const cli::SimulatedSchedule equal, Simulated(family, kSetting, EqualCosts()));
    ASSIGN_OR_RETURN(const cli::SimulatedSchedule skewed,
                     Simulated(family, kSetting, SkewedCosts()));
    absl::StrAppend(&page, "| [", name, "](", name, ".md) | ", family.num_chunks, " | ",
                    Percent(equal.report.bubble_fraction), " | ",
                    Percent(skewed.report.bubble_fraction), " | ", equal.report.peak_in_flight(),
                    " | ", equal.report.num_messages, " | ", std::string(family.summary), " |\n");
  }
  return page;
}

}  // namespace

absl::StatusOr<std::map<std::string, std::string>> SchedulePages() {
  std::map<std::string, std::string> pages;
  ASSIGN_OR_RETURN(pages["README.md"], Index());
  for (const schedule::Family& family : schedule::Families()) {
    const std::string name(family.name);
    ASSIGN_OR_RETURN(pages[name + ".md"], FamilyPage(family));
    ASSIGN_OR_RETURN(const cli::SimulatedSchedule simulated,
                     Simulated(family, {kPictureRanks, kPictureMicrobatches}, EqualCosts()));
    pages[name + ".svg"] = schedule::RenderSvg(simulated.timeline);
  }
  return pages;
}

}  // namespace takt::documents
