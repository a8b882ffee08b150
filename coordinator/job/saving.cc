// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/saving.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace takt::job {
namespace {

std::string NameOf(const RankRun& rank) {
  return absl::StrCat("rank ", rank.bound.rank.value(), " (", rank.bound.worker, ")");
}

}  // namespace

bool AddReport(store::Saving& saving, const control::CheckpointReport& report) {
  if (report.step <= saving.settled) return false;
  auto at = std::ranges::lower_bound(saving.open, report.step, {}, &store::OpenCheckpoint::step);
  if (at == saving.open.end() || at->step != report.step)
    at = saving.open.insert(at, {.step = report.step});
  if (std::ranges::find(at->written, report.rank) != at->written.end()) return false;
  at->written.push_back(report.rank);
  at->files.insert(at->files.end(), report.files.begin(), report.files.end());
  at->snapshot_seconds = std::max(at->snapshot_seconds, report.snapshot_seconds);
  at->write_seconds = std::max(at->write_seconds, report.write_seconds);
  if (at->error.empty() && !report.error.empty())
    at->error = absl::StrCat("rank ", report.rank.value(), ": ", report.error);
  return true;
}

SavingState JudgeOldest(const store::Saving& saving, std::span<const RankRun> ranks,
                        bool ranks_gave_up) {
  using Kind = SavingState::Kind;
  if (saving.open.empty()) return {};
  const store::OpenCheckpoint& oldest = saving.open.front();
  std::vector<std::string> writing, ended;
  for (const RankRun& rank : ranks) {
    if (std::ranges::find(oldest.written, rank.bound.rank) != oldest.written.end()) continue;
    const bool over = ranks_gave_up || rank.lost || IsTerminal(rank.phase);
    (over ? ended : writing).push_back(NameOf(rank));
  }
  const std::string name = absl::StrCat("the checkpoint of step ", oldest.step.value());
  if (!writing.empty())
    return {Kind::kWriting, absl::StrCat(absl::StrJoin(writing, ", "), " to write ", name)};
  if (!oldest.error.empty()) return {Kind::kFailed, oldest.error};
  if (!ended.empty()) {
    return {Kind::kFailed,
            absl::StrCat(absl::StrJoin(ended, ", "), " ended before its part was written")};
  }
  return {Kind::kComplete, absl::StrCat(name, " to become visible")};
}

store::OpenCheckpoint SettleOldest(store::Saving& saving) {
  store::OpenCheckpoint oldest = std::move(saving.open.front());
  saving.open.erase(saving.open.begin());
  saving.settled = oldest.step;
  return oldest;
}

}  // namespace takt::job
