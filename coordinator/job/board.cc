// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/board.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace takt::job {

void Board::Publish(store::JobRecord job) {
  Publish(std::make_shared<const store::JobRecord>(std::move(job)));
}

void Board::Publish(JobView view) {
  std::vector<Subscription> listeners;
  {
    absl::MutexLock lock(&mutex_);
    const store::JobRecord& job = *view;
    number_by_name_[job.name] = job.number;
    number_by_id_[job.id] = job.number;
    numbers_by_owner_[job.owner].insert(job.number);
    listeners = ListenersLocked(job.id);
    ++counts_[job.state];
    JobView& shown = jobs_[job.number];
    SetHoldersLocked(shown, job);
    if (shown != nullptr) {
      --counts_[shown->state];
      if (shown->owner != job.owner) numbers_by_owner_[shown->owner].erase(job.number);
    }
    shown = std::move(view);
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
    const store::JobRecord& job = *jobs_.at(number->second);
    const auto by_name = number_by_name_.find(job.name);
    if (by_name->second == number->second) number_by_name_.erase(by_name);
    const auto by_owner = numbers_by_owner_.find(job.owner);
    by_owner->second.erase(number->second);
    if (by_owner->second.empty()) numbers_by_owner_.erase(by_owner);
    --counts_[job.state];
    jobs_.erase(number->second);
    splits_.erase(number->second);
    holders_.erase(number->second);
    number_by_id_.erase(number);
    listeners = ListenersLocked(id);
  }
  for (const Subscription& listener : listeners) (*listener)();
}

void Board::ShowHeld(std::set<std::string> names) {
  absl::MutexLock lock(&mutex_);
  held_ = std::move(names);
}

bool Board::IsHeld(const std::string& name) const {
  absl::MutexLock lock(&mutex_);
  return held_.contains(name);
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

void Board::SetHoldersLocked(const JobView& before, const store::JobRecord& job) {
  // The ranks of a generation do not change while there are any.
  if (before != nullptr && before->generation == job.generation &&
      before->ranks.size() == job.ranks.size())
    return;
  holders_.erase(job.number);
  for (const control::BoundRank& rank : job.ranks) holders_[job.number].insert(rank.worker);
}

bool Board::HoldsRank(const std::string& job, const std::string& worker) const {
  absl::MutexLock lock(&mutex_);
  const auto number = number_by_name_.find(job);
  if (number == number_by_name_.end()) return false;
  const auto holders = holders_.find(number->second);
  return holders != holders_.end() && holders->second.contains(worker);
}

bool Board::HoldsNumberedRank(const std::string& job, const std::string& prefix) const {
  absl::MutexLock lock(&mutex_);
  const auto number = number_by_name_.find(job);
  if (number == number_by_name_.end()) return false;
  const auto holders = holders_.find(number->second);
  if (holders == holders_.end()) return false;
  // Names with this prefix are neighbours in the map.
  for (auto it = holders->second.lower_bound(prefix); it != holders->second.end(); ++it) {
    absl::string_view rest = *it;
    if (!absl::ConsumePrefix(&rest, prefix)) return false;
    const bool is_number = !rest.empty() && std::ranges::all_of(rest, [](unsigned char c) {
      return absl::ascii_isdigit(c);
    });
    if (is_number) return true;
  }
  return false;
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
                                 const std::function<bool(const store::JobRecord&)>& shown,
                                 const std::optional<std::string>& owner) const {
  absl::MutexLock lock(&mutex_);
  std::vector<JobView> found;
  if (owner) {
    const auto owned = numbers_by_owner_.find(*owner);
    if (owned == numbers_by_owner_.end()) return found;
    const std::set<std::int64_t>& numbers = owned->second;
    auto number = before > 0 ? numbers.lower_bound(before) : numbers.end();
    while (number != numbers.begin() && static_cast<int>(found.size()) < limit) {
      const JobView& job = jobs_.at(*--number);
      if (shown(*job)) found.push_back(job);
    }
    return found;
  }
  auto it = before > 0 ? jobs_.lower_bound(before) : jobs_.end();
  while (it != jobs_.begin() && static_cast<int>(found.size()) < limit) {
    if (shown(*(--it)->second)) found.push_back(it->second);
  }
  return found;
}

std::map<store::JobState, int> Board::CountByState() const {
  absl::MutexLock lock(&mutex_);
  return counts_;
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
