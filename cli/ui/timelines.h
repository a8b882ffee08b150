// SPDX-License-Identifier: Apache-2.0
// Keeps the timelines that pages look at, each read from the coordinator once.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "cli/client/client.h"
#include "common/trace/job_trace.h"
#include "common/trace/timeline.h"

namespace takt::cli {

// Thread-safe. Borrows the client.
class Timelines final {
 public:
  // Ranks that one picture shows in full.
  static constexpr int kRanksOfPicture = 64;

  explicit Timelines(Client& client) : client_(client) {}

  // Has a step of all ranks.
  struct Loaded {
    trace::JobTrace trace;
    trace::Timeline timeline;  // borrows `trace`
    std::int64_t step() const { return timeline.steps.back().step.value(); }
  };

  // Reads the newest measured step of a job and keeps it. Errors: those of Client::GetTrace.
  absl::StatusOr<std::shared_ptr<const Loaded>> ReadNewest(const std::string& job);

  // Returns the data of a picture of kRanksOfPicture ranks from first_rank on
  // (trace::TimelineData). step: 0 means the newest one that ReadNewest kept. Errors: those of
  // Client::GetTrace; kOutOfRange: the job has no such rank.
  absl::StatusOr<std::shared_ptr<const std::string>> Picture(const std::string& job,
                                                             std::int64_t step, int first_rank);

 private:
  struct Kept {
    std::shared_ptr<const Loaded> loaded;
    std::map<int, std::shared_ptr<const std::string>> pictures = {};  // by first rank
    std::int64_t used = 0;                                            // when, in a count of uses
  };
  using Key = std::pair<std::string, std::int64_t>;  // job and step; 0: the newest

  absl::StatusOr<std::shared_ptr<const Loaded>> Read(const std::string& job, std::int64_t step);
  void Keep(const Key& key, std::shared_ptr<const Loaded> loaded);
  // Returns null if the step is not kept.
  std::shared_ptr<const Loaded> Find(const Key& key);

  Client& client_;
  absl::Mutex mutex_;
  std::int64_t uses_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<Key, Kept> kept_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace takt::cli
