// SPDX-License-Identifier: Apache-2.0
#include "coordinator/etcd/snapshot.h"

#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/etcd/keys.h"
#include "coordinator/store/record_serde.h"
#include "takt/v1/job_record.pb.h"
#include "takt/v1/worker_record.pb.h"

namespace takt::etcd {
namespace {

// How often the state is read again because etcd compacted the revision meanwhile.
constexpr int kAttempts = 3;

std::string AfterLastSlash(const std::string& key) { return key.substr(key.rfind('/') + 1); }

// The name behind the folder. It may have slashes itself.
std::string NameIn(const std::string& key, absl::string_view folder) {
  return key.substr(folder.size());
}

absl::Status ReadJobs(const Reader& reader, State& state) {
  ASSIGN_OR_RETURN(const Listing jobs, reader.List(kJobs, {.revision = state.revision}));
  ASSIGN_OR_RETURN(const Listing steps, reader.List(kLastSteps, {.revision = state.revision}));
  std::map<std::string, const Entry*> last_steps;
  for (const Entry& entry : steps.entries) last_steps[NameIn(entry.key, kLastSteps)] = &entry;
  for (const Entry& entry : jobs.entries) {
    v1::JobRecord record;
    if (!record.ParseFromString(entry.value)) return Unreadable(reader, entry);
    store::JobRecord& job = state.snapshot.jobs.emplace_back(store::FromProto(record));
    const std::string number = NameIn(entry.key, kJobs);
    if (!absl::SimpleAtoi(number.substr(0, number.find('/')), &job.number))
      return Unreadable(reader, entry);
    const auto step = last_steps.find(job.id);
    if (step == last_steps.end()) continue;
    v1::StepReport report;
    if (!report.ParseFromString(step->second->value)) return Unreadable(reader, *step->second);
    job.last_step = store::FromProto(report, job.id);
  }
  return absl::OkStatus();
}

absl::Status ReadMeta(const Reader& reader, State& state) {
  ASSIGN_OR_RETURN(const Listing meta, reader.List(kMeta));
  state.revision = meta.revision;
  const auto number = [&](const char* key, std::int64_t& into) -> absl::Status {
    const Entry* const entry = meta.Find(key);
    if (entry == nullptr) return absl::OkStatus();
    ASSIGN_OR_RETURN(into, ParseNumber(reader, *entry));
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(number(kCommitKey, state.commits));
  RETURN_IF_ERROR(number(kEpochKey, state.snapshot.epoch));
  RETURN_IF_ERROR(number(kLastNumberKey, state.snapshot.last_number));
  if (const Entry* cluster = meta.Find(kClusterKey)) state.snapshot.cluster_id = cluster->value;
  return absl::OkStatus();
}

absl::StatusOr<State> ReadOnce(const Reader& reader) {
  State state;
  RETURN_IF_ERROR(ReadMeta(reader, state));
  RETURN_IF_ERROR(ReadJobs(reader, state));
  const ListOptions then{.revision = state.revision};
  ASSIGN_OR_RETURN(const Listing drained, reader.List(kDrained, then));
  for (const Entry& entry : drained.entries)
    state.snapshot.drained.insert(NameIn(entry.key, kDrained));
  ASSIGN_OR_RETURN(const Listing workers, reader.List(kWorkers, then));
  for (const Entry& entry : workers.entries) {
    v1::WorkerRecord record;
    if (!record.ParseFromString(entry.value)) return Unreadable(reader, entry);
    state.snapshot.workers[NameIn(entry.key, kWorkers)] = store::FromProto(record);
  }
  ASSIGN_OR_RETURN(const Listing generations, reader.List(kGenerations, then));
  for (const Entry& entry : generations.entries) {
    ASSIGN_OR_RETURN(const std::int64_t generation, ParseNumber(reader, entry));
    state.snapshot.generations[NameIn(entry.key, kGenerations)] = Generation(generation);
  }
  return state;
}

}  // namespace

absl::Status Unreadable(const Reader& reader, const Entry& entry) {
  return absl::DataLossError(absl::StrCat("etcd's key ", reader.prefix(), entry.key,
                                          " does not parse; restore etcd from a snapshot "
                                          "(docs/two-coordinators.md)"));
}

absl::StatusOr<std::int64_t> ParseNumber(const Reader& reader, const Entry& entry) {
  std::int64_t number = 0;
  if (absl::SimpleAtoi(entry.value, &number)) return number;
  return Unreadable(reader, entry);
}

absl::StatusOr<State> ReadState(const Reader& reader) {
  for (int attempt = 1;; ++attempt) {
    absl::StatusOr<State> state = ReadOnce(reader);
    if (!absl::IsOutOfRange(state.status()) || attempt == kAttempts) return state;
  }
}

absl::StatusOr<RequestOrder> ReadRequestOrder(const Reader& reader) {
  ASSIGN_OR_RETURN(const Listing listing, reader.List(kRequestOrder));
  RequestOrder order;
  for (const Entry& entry : listing.entries) {
    std::int64_t number = 0;
    if (!absl::SimpleAtoi(AfterLastSlash(entry.key), &number)) return Unreadable(reader, entry);
    order.emplace_back(number, entry.value);
  }
  return order;
}

}  // namespace takt::etcd
