// SPDX-License-Identifier: Apache-2.0
// Over many sizes, what generators make is valid and within its bounds, and the validator sees
// every corruption of it.
#include <algorithm>
#include <set>
#include <span>
#include <tuple>

#include "common/base/status.h"
#include "common/schedule/testing/any_family.h"
#include "common/schedule/testing/any_order.h"
#include "common/schedule/text.h"
#include "common/schedule/validator.h"
#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"

namespace takt::schedule {
namespace {

Schedule AnySchedule() { return Uniform(0, 2) == 0 ? AnyFamily() : AnyOrder(); }

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

bool NamesMicrobatch(const absl::Status& status, MicrobatchId microbatch) {
  const std::vector<FieldError> errors = FieldErrorsOf(status);
  if (errors.size() != 1) return false;
  const absl::StatusOr<Action> action = Action::Parse(errors[0].value);
  return action.ok() && action->microbatch == microbatch;
}

Schedule WithoutPairs(Schedule schedule) {
  for (Row& row : schedule.ranks) {
    for (Action& action : row) action.joins_next = false;
  }
  return schedule;
}

RC_GTEST_PROP(ScheduleProperty, GeneratedIsValidAndAscending, ()) {
  const Schedule schedule = AnyFamily();
  const absl::Status status = Validate(schedule);
  if (!status.ok()) RC_FAIL(std::string(status.message()));
  RC_ASSERT(Warnings(schedule).empty());
  if (schedule.num_ranks() > 1) {  // one rank is a loop and a v
    RC_ASSERT(InferPlacement(schedule).value() == schedule.placement);
  }
}

RC_GTEST_PROP(ScheduleProperty, AnyOrderOfRunsIsValidInEveryPlacement, ()) {
  const Schedule schedule = AnyOrder();
  const absl::Status status = Validate(schedule);
  if (!status.ok()) RC_FAIL(std::string(status.message()) + FormatCsv(schedule));
  const auto inferred = InferPlacement(schedule);
  RC_ASSERT(inferred.ok());
  // On one rank a loop and a v are the same.
  RC_ASSERT(*inferred == schedule.placement || schedule.num_ranks() == 1);
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
  const absl::Status status = Validate(schedule);
  // With the F of stage 0 the microbatch has changed its direction, so all its actions contradict
  // it.
  const bool turned = schedule.placement == Placement::kBidirectional &&
                      moved.stage == StageId(0) && moved.kind == ActionKind::kForward;
  RC_ASSERT((turned ? NamesMicrobatch(status, moved.microbatch) : Names(status, moved)));
}

RC_GTEST_PROP(ScheduleProperty, ABackwardBeforeItsForwardIsNamed, ()) {
  Schedule schedule = WithoutPairs(AnySchedule());
  const Cell cell = AnyCell(schedule);
  auto& row = schedule.ranks[cell.rank];
  const Action action = row[cell.position];
  const auto is = [&](ActionKind kind) {
    return [&action, kind](const Action& other) {
      return other == Action{action.stage, kind, action.microbatch};
    };
  };
  const auto forward = std::find_if(row.begin(), row.end(), is(ActionKind::kForward));
  auto backward = std::find_if(row.begin(), row.end(), is(ActionKind::kBackward));
  if (backward == row.end()) {
    backward = std::find_if(row.begin(), row.end(), is(ActionKind::kInputGrad));
  }
  std::iter_swap(forward, backward);
  RC_ASSERT(Names(Validate(schedule), *forward));
}

RC_GTEST_PROP(ScheduleProperty, AnActionThatMayNotJoinIsNamed, ()) {
  Schedule schedule = WithoutPairs(AnySchedule());
  const Cell cell = AnyCell(schedule);
  Row& row = schedule.ranks[cell.rank];
  Action& action = row[cell.position];
  action.joins_next = true;
  // This is not inside RC_PRE, because that evaluates both sides of ||.
  const bool legal =
      BeginsPair(row, cell.position) && row[cell.position + 1].microbatch != action.microbatch;
  RC_PRE(!legal);
  RC_ASSERT(Names(Validate(schedule), action));
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

// Makes overlapped pairs of some of the places where a B follows an F of another microbatch.
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
