// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/board.h"

#include <utility>

namespace takt::job {

void Board::Publish(store::JobRecord job) {
  std::vector<Subscription> listeners;
  {
    absl::MutexLock lock(&mutex_);
    number_by_name_[job.name] = job.number;
    number_by_id_[job.id] = job.number;
    listeners = ListenersLocked(job.id);
    const std::int64_t number = job.number;
    jobs_[number] = std::make_shared<const store::JobRecord>(std::move(job));
  }
  for (const Subscription& listener : listeners) (*listener)();
}

void Board::Remove(const std::string& id) {
  std::vector<Subscription> listeners;
  {
    absl::MutexLock lock(&mutex_);
    const auto number = number_by_id_.find(id);
    if (number == number_by_id_.end()) return;
    // The name may belong to a newer job by now.
    const auto by_name = number_by_name_.find(jobs_.at(number->second)->name);
    if (by_name->second == number->second) number_by_name_.erase(by_name);
    jobs_.erase(number->second);
    splits_.erase(number->second);
    number_by_id_.erase(number);
    listeners = ListenersLocked(id);
  }
  for (const Subscription& listener : listeners) (*listener)();
}

void Board::ShowSplit(const std::string& name, StepSplit split) {
  std::vector<Subscription> listeners;
  {
    absl::MutexLock lock(&mutex_);
    const auto number = number_by_name_.find(name);
    if (number == number_by_name_.end()) return;
    const store::JobRecord& job = *jobs_.at(number->second);
    if (job.generation != split.generation) return;
    listeners = ListenersLocked(job.id);
    splits_[job.number] = std::make_shared<const StepSplit>(std::move(split));
  }
  for (const Subscription& listener : listeners) (*listener)();
}

SplitView Board::FindSplit(const std::string& id) const {
  absl::MutexLock lock(&mutex_);
  const auto number = number_by_id_.find(id);
  if (number == number_by_id_.end()) return nullptr;
  const auto split = splits_.find(number->second);
  if (split == splits_.end()) return nullptr;
  const bool current = split->second->generation == jobs_.at(number->second)->generation;
  return current ? split->second : nullptr;
}

JobView Board::FindByName(const std::string& name) const {
  absl::MutexLock lock(&mutex_);
  const auto it = number_by_name_.find(name);
  return it == number_by_name_.end() ? nullptr : jobs_.at(it->second);
}

JobView Board::FindById(const std::string& id) const {
  absl::MutexLock lock(&mutex_);
  const auto it = number_by_id_.find(id);
  return it == number_by_id_.end() ? nullptr : jobs_.at(it->second);
}

std::vector<JobView> Board::List(std::int64_t before, int limit,
                                 const std::function<bool(const store::JobRecord&)>& shown) const {
  absl::MutexLock lock(&mutex_);
  std::vector<JobView> found;
  auto it = before > 0 ? jobs_.lower_bound(before) : jobs_.end();
  while (it != jobs_.begin() && static_cast<int>(found.size()) < limit) {
    if (shown(*(--it)->second)) found.push_back(it->second);
  }
  return found;
}

std::map<store::JobState, int> Board::CountByState() const {
  absl::MutexLock lock(&mutex_);
  std::map<store::JobState, int> counts;
  for (const auto& [number, job] : jobs_) ++counts[job->state];
  return counts;
}

Board::Subscription Board::Subscribe(const std::string& id, Listener listener) {
  auto subscription = std::make_shared<const Listener>(std::move(listener));
  absl::MutexLock lock(&mutex_);
  std::erase_if(listeners_, [](const auto& entry) { return entry.second.expired(); });
  listeners_.emplace(id, subscription);
  return subscription;
}

std::vector<Board::Subscription> Board::ListenersLocked(const std::string& id) {
  std::vector<Subscription> found;
  const auto [begin, end] = listeners_.equal_range(id);
  for (auto it = begin; it != end; ++it) {
    if (Subscription listener = it->second.lock()) found.push_back(std::move(listener));
  }
  return found;
}

}  // namespace takt::job
