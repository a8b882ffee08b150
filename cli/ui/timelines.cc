// SPDX-License-Identifier: Apache-2.0
#include "cli/ui/timelines.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/counted.h"
#include "common/base/status.h"
#include "common/trace/page.h"

namespace takt::cli {
namespace {

constexpr absl::Duration kReadTimeout = absl::Seconds(10);
// Steps that are kept: of thousands of ranks each takes tens of megabytes.
constexpr std::size_t kMostKept = 6;
constexpr std::size_t kMostPictures = 4;  // of one step

}  // namespace

absl::StatusOr<std::shared_ptr<const Timelines::Loaded>> Timelines::Read(const std::string& job,
                                                                         std::int64_t step) {
  const auto loaded = std::make_shared<Loaded>();
  ASSIGN_OR_RETURN(loaded->trace,
                   client_.GetTrace(job, {.first = step, .last = step}, kReadTimeout));
  ASSIGN_OR_RETURN(loaded->timeline, trace::MakeTimeline(loaded->trace));
  return std::shared_ptr<const Loaded>(loaded);
}

void Timelines::Keep(const Key& key, std::shared_ptr<const Loaded> loaded) {
  const absl::MutexLock lock(&mutex_);
  kept_[key] = {.loaded = std::move(loaded), .used = ++uses_};
  if (kept_.size() <= kMostKept) return;
  kept_.erase(
      std::ranges::min_element(kept_, {}, [](const auto& entry) { return entry.second.used; }));
}

std::shared_ptr<const Timelines::Loaded> Timelines::Find(const Key& key) {
  const absl::MutexLock lock(&mutex_);
  const auto found = kept_.find(key);
  return found == kept_.end() ? nullptr : found->second.loaded;
}

absl::StatusOr<std::shared_ptr<const Timelines::Loaded>> Timelines::ReadNewest(
    const std::string& job) {
  ASSIGN_OR_RETURN(std::shared_ptr<const Loaded> newest, Read(job, 0));
  const std::shared_ptr<const Loaded> before = Find({job, 0});
  // A job that began again may have the same step in another generation.
  if (before != nullptr && before->step() == newest->step() &&
      before->trace.generation == newest->trace.generation) {
    return before;
  }
  Keep({job, 0}, newest);
  return newest;
}

absl::StatusOr<std::shared_ptr<const std::string>> Timelines::Picture(const std::string& job,
                                                                      std::int64_t step,
                                                                      int first_rank) {
  const Key key(job, step);
  std::shared_ptr<const Loaded> loaded = Find(key);
  if (loaded == nullptr) {
    ASSIGN_OR_RETURN(loaded, Read(job, step));
    Keep(key, loaded);
  }
  if (first_rank >= loaded->trace.num_ranks()) {
    return absl::OutOfRangeError(absl::StrCat("rank ", first_rank, ": ", job, " has ",
                                              Counted(loaded->trace.num_ranks(), "rank")));
  }
  const absl::MutexLock lock(&mutex_);
  const auto found = kept_.find(key);
  if (found == kept_.end() || found->second.loaded != loaded) {
    return std::make_shared<const std::string>(
        trace::TimelineData(loaded->timeline, {.first = first_rank, .count = kRanksOfPicture}));
  }
  found->second.used = ++uses_;
  auto& pictures = found->second.pictures;
  if (!pictures.contains(first_rank)) {
    if (pictures.size() >= kMostPictures) pictures.clear();
    pictures[first_rank] = std::make_shared<const std::string>(
        trace::TimelineData(loaded->timeline, {.first = first_rank, .count = kRanksOfPicture}));
  }
  return pictures[first_rank];
}

}  // namespace takt::cli
