// SPDX-License-Identifier: Apache-2.0
// The coordinator's durable state behind a small interface. It is implemented in SQLite
// (sqlite_store.h), in etcd (coordinator/etcd) and in memory (memory_store.h, for tests). One
// suite, store_test.cc, tests all of them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/store/record.h"

namespace takt::store {

// Says whose state it is, and what its past forbids. Only a copy of a whole state sets it
// (copy_state.h).
struct ClusterIdentity {
  std::string cluster_id;
  std::int64_t epoch = 0;
  std::int64_t last_number = 0;
  std::map<std::string, Generation> generations;  // of deleted jobs, by name
};

// One transaction: either all of it is kept, or nothing.
struct Changes {
  std::vector<JobRecord> jobs;            // written whole, by id
  std::vector<std::string> deleted_jobs;  // ids; their steps and log lines go too
  std::vector<StepRecord> steps;  // a (job, generation, step) already there is left as it is
  std::vector<RequestRecord> requests;
  std::map<std::string, bool> drained;          // by worker
  std::map<std::string, WorkerRecord> workers;  // written whole, by name; an empty one is removed
  std::vector<LogRecord> logs;                  // numbers are given by the store
  // takt.v1.Profile, serialized; it replaces the one before. Nullopt: that one stays.
  std::optional<std::string> profile;
  // Cluster id and epoch replace those before, the rest is added. Nullopt: all stays.
  std::optional<ClusterIdentity> identity;

  bool empty() const {
    return jobs.empty() && deleted_jobs.empty() && steps.empty() && requests.empty() &&
           drained.empty() && workers.empty() && logs.empty() && !profile.has_value() &&
           !identity.has_value();
  }
};

// What a coordinator starts from.
struct Snapshot {
  std::vector<JobRecord> jobs;  // by number, with last_step
  std::set<std::string> drained;
  std::map<std::string, WorkerRecord> workers;
  std::int64_t last_number = 0;  // highest job number ever given
  // The highest of deleted jobs, by name: a new job of that name continues there.
  std::map<std::string, Generation> generations;
  std::string cluster_id;  // 32 hexadecimal digits, made with the state; copies have the same
  std::int64_t epoch = 0;  // raised by each coordinator that starts on this state
};

struct StoreLimits {
  int requests = 10'000;   // newest kept
  int log_lines = 10'000;  // newest kept, per job; they take at most 21 MB: 2 KiB of text each
  // Newest kept whole, per job, in a state file; older ones are thinned out (step_thinning.h). 0:
  // all are kept whole.
  std::int64_t steps = 100'000;
  std::int64_t reserve_bytes = std::int64_t{16} << 20;  // kept free for deletions; 0: none
  std::int64_t pages = 0;  // of the database, as if the disk were full then; 0: no limit
};

// Thread-safe.
class Store {
 public:
  virtual ~Store() = default;

  // Only reads.
  virtual absl::StatusOr<Snapshot> Load() = 0;

  // Raises the epoch by one, durably, and returns it. A coordinator calls it once at its start,
  // before Load. Errors: as Commit.
  virtual absl::StatusOr<std::int64_t> RaiseEpoch() = 0;

  // The changes are durable when it returns OK.  Blocks: for the disk.
  // Errors: kResourceExhausted (the disk is full): nothing is kept, and the same changes may be
  // committed later. kDataLoss (damaged), kUnavailable (not writable): the caller must end, and
  // whoever loads the state next sees all of the changes or nothing of them. The file is named.
  virtual absl::Status Commit(const Changes& changes) = 0;

  // Returns steps after `after`, ascending, at most `limit`. Old ones may be missing
  // (StoreLimits::steps).
  virtual absl::StatusOr<std::vector<StepRecord>> ReadSteps(const std::string& job_id, StepId after,
                                                            int limit) = 0;

  // The request as it was answered; nullopt: it was not.
  virtual absl::StatusOr<std::optional<RequestRecord>> FindRequest(
      const std::string& method, const std::string& request_id) = 0;

  // Lines with a number above `after`, ascending, at most `limit`.
  virtual absl::StatusOr<std::vector<LogRecord>> ReadLogs(const std::string& job_id,
                                                          std::int64_t after, int limit) = 0;

  // The profile as it was committed last, empty if none was.
  virtual absl::StatusOr<std::string> ReadProfile() = 0;
};

}  // namespace takt::store
