// SPDX-License-Identifier: Apache-2.0
// Over many sizes: what generators make is valid, within its bounds, and no corruption of it passes
// unnoticed.
#include <algorithm>
#include <set>
#include <span>
#include <tuple>

#include "common/base/status.h"
#include "common/schedule/generate.h"
#include "common/schedule/text.h"
#include "common/schedule/validator.h"
#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"

namespace takt::schedule {
namespace {

// Uniform in [low, high): rapidcheck's own ranges stay near the lower end for most of a run.
int Uniform(int low, int high) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(low, high));
}

Schedule AnySchedule() {
  GenerateOptions options;
  options.num_ranks = Uniform(1, 9);
  options.num_microbatches = Uniform(1, 17);
  const std::span<const Family> families = Families();
  const Family& family = families[Uniform(0, static_cast<int>(families.size()))];
  if (family.uses_chunks) {
    options.num_chunks = Uniform(2, 5);
    options.num_microbatches = std::max(options.num_microbatches, options.num_ranks);
  }
  auto schedule = Generate(family.name, options);
  RC_ASSERT(schedule.ok());
  return *std::move(schedule);
}

struct Cell {
  int rank = 0;
  int position = 0;
};

Cell AnyCell(const Schedule& schedule) {
  const int rank = Uniform(0, schedule.num_ranks());
  return {rank, Uniform(0, static_cast<int>(schedule.ranks[rank].size()))};
}

bool Names(const absl::Status& status, const Action& action) {
  const std::vector<FieldError> errors = FieldErrorsOf(status);
  return errors.size() == 1 && errors[0].value == action.ToString();
}

RC_GTEST_PROP(ScheduleProperty, GeneratedIsValidAndAscending, ()) {
  const Schedule schedule = AnySchedule();
  const absl::Status status = Validate(schedule);
  if (!status.ok()) RC_FAIL(std::string(status.message()));
  RC_ASSERT(Warnings(schedule).empty());
  RC_ASSERT(InferPlacement(schedule).value() == Placement::kLoop);
}

RC_GTEST_PROP(ScheduleProperty, PeaksEqualTheFormulas, ()) {
  const Schedule schedule = AnySchedule();
  const int p = schedule.num_ranks();
  const int m = schedule.num_microbatches;
  const std::vector<int> peaks = PeakInFlight(schedule);
  for (int r = 0; r < p; ++r) {
    if (schedule.name == "naive") RC_ASSERT(peaks[r] == 1);
    if (schedule.name == "gpipe") RC_ASSERT(peaks[r] == m);
    if (schedule.name == "1f1b") RC_ASSERT(peaks[r] == std::min(p - r, m));
    if (schedule.name == "interleaved-1f1b" && m % p == 0) {
      const int v = schedule.num_stages / p;
      RC_ASSERT(peaks[r] == std::min((v - 1) * p + 2 * (p - 1 - r) + 1, v * m));
    }
  }
}

RC_GTEST_PROP(ScheduleProperty, TextFormReadsBack, ()) {
  const Schedule schedule = AnySchedule();
  const auto parsed = ParseCsv(FormatCsv(schedule), schedule.name);
  RC_ASSERT(parsed.ok());
  RC_ASSERT(parsed->ranks == schedule.ranks);
  RC_ASSERT(parsed->num_stages == schedule.num_stages);
  RC_ASSERT(parsed->num_microbatches == schedule.num_microbatches);
}

RC_GTEST_PROP(ScheduleProperty, ARemovedCellIsNamed, ()) {
  Schedule schedule = AnySchedule();
  const Cell cell = AnyCell(schedule);
  auto& row = schedule.ranks[cell.rank];
  const Action removed = row[cell.position];
  row.erase(row.begin() + cell.position);
  RC_ASSERT(Names(Validate(schedule), removed));
}

RC_GTEST_PROP(ScheduleProperty, ADoubledCellIsNamed, ()) {
  Schedule schedule = AnySchedule();
  const Cell from = AnyCell(schedule);
  const Cell to = AnyCell(schedule);
  const Action doubled = schedule.ranks[from.rank][from.position];
  auto& row = schedule.ranks[to.rank];
  row.insert(row.begin() + to.position, doubled);
  RC_ASSERT(Names(Validate(schedule), doubled));
}

RC_GTEST_PROP(ScheduleProperty, ACellOnAnotherRankIsNamed, ()) {
  Schedule schedule = AnySchedule();
  RC_PRE(schedule.num_ranks() > 1);
  const Cell from = AnyCell(schedule);
  const int other = (from.rank + Uniform(1, schedule.num_ranks())) % schedule.num_ranks();
  auto& row = schedule.ranks[from.rank];
  const Action moved = row[from.position];
  row.erase(row.begin() + from.position);
  schedule.ranks[other].push_back(moved);
  RC_ASSERT(Names(Validate(schedule), moved));
}

RC_GTEST_PROP(ScheduleProperty, ABackwardBeforeItsForwardIsNamed, ()) {
  Schedule schedule = AnySchedule();
  const Cell cell = AnyCell(schedule);
  auto& row = schedule.ranks[cell.rank];
  const Action action = row[cell.position];
  const auto forward = std::find(row.begin(), row.end(),
                                 Action{action.stage, ActionKind::kForward, action.microbatch});
  const auto backward = std::find(row.begin(), row.end(),
                                  Action{action.stage, ActionKind::kBackward, action.microbatch});
  std::iter_swap(forward, backward);
  RC_ASSERT(Names(Validate(schedule), {action.stage, ActionKind::kBackward, action.microbatch}));
}

RC_GTEST_PROP(ScheduleProperty, ShuffledRowsNeverCrashTheValidator, ()) {
  Schedule schedule = AnySchedule();
  for (int i = 0; i < 4; ++i) {
    const Cell cell = AnyCell(schedule);
    auto& row = schedule.ranks[cell.rank];
    std::swap(row[cell.position], row[Uniform(0, static_cast<int>(row.size()))]);
  }
  const absl::Status status = Validate(schedule);
  RC_ASSERT(status.ok() || status.code() == absl::StatusCode::kInvalidArgument);
}

// Some of the places where a B follows an F of another microbatch become overlapped pairs.
Schedule WithPairs(Schedule schedule) {
  for (Row& row : schedule.ranks) {
    for (std::size_t i = 0; i + 1 < row.size(); ++i) {
      row[i].joins_next = row[i].kind == ActionKind::kForward &&
                          row[i + 1].kind == ActionKind::kBackward &&
                          row[i].microbatch != row[i + 1].microbatch && Uniform(0, 4) == 0;
    }
  }
  return schedule;
}

// Runs cells, in any order that their inputs allow, until none can start.
bool Completes(const Schedule& schedule) {
  std::set<std::tuple<StageId, bool, MicrobatchId>> made;  // by F, or by I or B
  std::vector<int> next(schedule.num_ranks(), 0);
  const auto has_input = [&](const Action& action) {
    if (action.kind == ActionKind::kWeightGrad) return true;
    const bool forward = action.kind == ActionKind::kForward;
    const StageId from(action.stage.value() + (forward ? -1 : 1));
    return from.value() < 0 || from.value() == schedule.num_stages ||
           made.contains({from, forward, action.microbatch});
  };
  for (bool progress = true; progress;) {
    progress = false;
    for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
      const Row& row = schedule.ranks[rank];
      if (next[rank] == static_cast<int>(row.size())) continue;
      const int size = BeginsPair(row, next[rank]) ? 2 : 1;
      const std::span<const Action> cell(&row[next[rank]], size);
      if (!std::all_of(cell.begin(), cell.end(), has_input)) continue;
      for (const Action& action : cell) {
        made.insert({action.stage, action.kind == ActionKind::kForward, action.microbatch});
      }
      next[rank] += size;
      progress = true;
    }
  }
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    if (next[rank] < static_cast<int>(schedule.ranks[rank].size())) return false;
  }
  return true;
}

RC_GTEST_PROP(ScheduleProperty, PairsAreValidExactlyIfTheyComplete, ()) {
  const Schedule schedule = WithPairs(AnySchedule());
  const absl::Status status = Validate(schedule);
  RC_ASSERT(status.ok() == Completes(schedule));
  if (!status.ok()) {
    RC_ASSERT(std::string(status.message()).find("can never start") != std::string::npos);
  }
}

RC_GTEST_PROP(ScheduleProperty, PairsReadBack, ()) {
  const Schedule schedule = WithPairs(AnySchedule());
  const auto parsed = ParseCsv(FormatCsv(schedule), schedule.name);
  RC_ASSERT(parsed.ok());
  RC_ASSERT(parsed->ranks == schedule.ranks);
}

RC_GTEST_PROP(ScheduleProperty, DamagedTextIsParsedOrRefused, ()) {
  std::string text = FormatCsv(WithPairs(AnySchedule()));
  for (int i = 0; i < 3; ++i) {
    text[Uniform(0, static_cast<int>(text.size()))] = "0;()FB,\n"[Uniform(0, 8)];
  }
  auto schedule = ParseCsv(text, "fuzz");
  if (schedule.ok()) Validate(*schedule).IgnoreError();
}

RC_GTEST_PROP(ScheduleProperty, AnyTextParsesOrIsRefused, ()) {
  const auto text = *rc::gen::container<std::string>(
      rc::gen::elementOf(std::string("0123456789FBIW,,\n\r ;()-OVERLAP\"\xff")));
  auto schedule = ParseCsv(text, "fuzz");
  if (!schedule.ok()) {
    RC_ASSERT(schedule.status().code() == absl::StatusCode::kInvalidArgument);
    return;
  }
  schedule->placement = InferPlacement(*schedule).value_or(Placement::kLoop);
  Validate(*schedule).IgnoreError();
  Warnings(*schedule);
}

}  // namespace
}  // namespace takt::schedule
