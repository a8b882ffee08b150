// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/saving.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/job/rank_names.h"

namespace takt::job {
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
  std::vector<bool> has_written(ranks.size());  // by rank
  for (const Rank rank : oldest.written) {
    const auto place = static_cast<std::size_t>(rank.value());
    if (place < has_written.size()) has_written[place] = true;
  }
  RankNames writing, ended;
  for (std::size_t place = 0; place < ranks.size(); ++place) {
    if (has_written[place]) continue;
    const RankRun& rank = ranks[place];
    const bool over = ranks_gave_up || rank.lost || IsTerminal(rank.phase);
    (over ? ended : writing).Add(rank.bound);
  }
  const std::string name = absl::StrCat("the checkpoint of step ", oldest.step.value());
  if (!writing.empty())
    return {Kind::kWriting, absl::StrCat(writing.ToString(), " to write ", name)};
  if (!oldest.error.empty()) return {Kind::kFailed, oldest.error};
  if (!ended.empty()) {
    return {Kind::kFailed, absl::StrCat(ended.ToString(), " ended before its part was written")};
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
