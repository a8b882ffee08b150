// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/outbox.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace takt::job {
namespace {

template <class T>
void MoveTo(std::vector<T>& all, std::vector<T>& more) {
  all.insert(all.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

const std::string& IdOf(const store::JobRecord& job) { return job.id; }
const std::string& IdOf(const JobView& job) { return job->id; }

// The same for records, of which only the newest of each job stays: a wait may be long.
template <class Record>
void MoveNewest(std::vector<Record>& all, std::vector<Record>& more) {
  std::erase_if(all, [&](const Record& old) {
    return std::ranges::any_of(more, [&](const Record& next) { return IdOf(next) == IdOf(old); });
  });
  MoveTo(all, more);
}

// Every field of Changes is here. What is written later wins, as it does in the store.
void Append(store::Changes& all, store::Changes more) {
  MoveNewest(all.jobs, more.jobs);
  MoveTo(all.deleted_jobs, more.deleted_jobs);
  MoveTo(all.steps, more.steps);
  MoveTo(all.requests, more.requests);
  for (const auto& [worker, drained] : more.drained) all.drained[worker] = drained;
  for (auto& [worker, record] : more.workers) all.workers[worker] = std::move(record);
  MoveTo(all.logs, more.logs);
  if (more.profile) all.profile = std::move(more.profile);
  if (more.identity) all.identity = std::move(more.identity);
}

}  // namespace

void Outbox::Append(Outbox more) {
  takt::job::Append(changes, std::move(more.changes));
  // The reader removes before it shows, so what is removed later must not be shown.
  std::erase_if(published, [&](const JobView& job) {
    return std::ranges::find(more.removed, job->id) != more.removed.end();
  });
  MoveNewest(published, more.published);
  MoveTo(removed, more.removed);
  MoveTo(effects, more.effects);
  MoveTo(checkpoints, more.checkpoints);
  MoveTo(recoveries, more.recoveries);
  MoveTo(recovering, more.recovering);
  workers_lost += more.workers_lost;
}

}  // namespace takt::job
