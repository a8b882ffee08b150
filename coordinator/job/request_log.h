// SPDX-License-Identifier: Apache-2.0
// Remembers the requests that were answered. One that is sent again is answered as before and
// changes nothing.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/store/store.h"

namespace takt::job {

// One thread.
class RequestLog final {
 public:
  // store: borrowed, only read.
  explicit RequestLog(store::Store* store) : store_(store) {}

  // Returns the earlier request of that id, nullopt if there is none. A request without an id never
  // has one. Errors: kInvalidArgument (the id was used for another job), the store's.
  absl::StatusOr<std::optional<store::RequestRecord>> Find(const std::string& method,
                                                           const std::string& request_id,
                                                           const std::string& job) const;

  // Adds a request that was answered with `job`; nullopt: the answer was not a job.
  void Add(const std::string& method, const std::string& request_id,
           std::optional<store::JobRecord> job);

  // Returns what was added since the last call. It is committed with what the requests changed.
  std::vector<store::RequestRecord> Take();

 private:
  store::Store* const store_;
  std::vector<store::RequestRecord> added_;
};

}  // namespace takt::job
