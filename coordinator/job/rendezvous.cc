// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/rendezvous.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::job {
namespace {

// A wait may name at most so many keys, because its answer has all their values.
constexpr std::size_t kMaxKeysAtOnce = 64;

// A callback and its argument. They are collected under the lock and called after it.
using Due = std::vector<std::pair<Rendezvous::Callback, absl::StatusOr<Rendezvous::Values>>>;

void CallAll(Due& due) {
  for (auto& [callback, result] : due) callback(std::move(result));
}

// Returns the values if all keys are there, otherwise the first key that is not.
std::pair<Rendezvous::Values, const std::string*> Lookup(
    const std::map<std::string, std::string>& values, const std::vector<std::string>& keys) {
  Rendezvous::Values found;
  for (const std::string& key : keys) {
    const auto it = values.find(key);
    if (it == values.end()) return {{}, &key};
    found.push_back(it->second);
  }
  return {std::move(found), nullptr};
}

absl::Status Stopped() { return absl::UnavailableError("the coordinator is stopping; ask again"); }

}  // namespace

void Rendezvous::Stop() {
  Due due;
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
    for (auto& [job, scope] : scopes_) {
      for (Waiting& wait : scope.waits) due.emplace_back(std::move(wait.callback), Stopped());
    }
    scopes_.clear();
  }
  CallAll(due);
}

void Rendezvous::Open(const std::string& job, Generation generation) {
  Close(job);
  absl::MutexLock lock(&mutex_);
  if (!stopped_) scopes_[job].generation = generation;
}

void Rendezvous::Close(const std::string& job) {
  Due due;
  {
    absl::MutexLock lock(&mutex_);
    const auto it = scopes_.find(job);
    if (it == scopes_.end()) return;
    for (Waiting& wait : it->second.waits) {
      due.emplace_back(std::move(wait.callback),
                       absl::AbortedError(absl::StrCat("generation ", it->second.generation.value(),
                                                       " of job ", job, " is over")));
    }
    scopes_.erase(it);
  }
  CallAll(due);
}

absl::Status Rendezvous::Set(const std::string& job, Generation generation, const std::string& key,
                             std::string value) {
  if (key.empty() || key.size() > limits_.key_bytes || value.size() > limits_.value_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "key of ", key.size(), " bytes, value of ", value.size(), ": at most ", limits_.key_bytes,
        " and ", limits_.value_bytes, " are kept, and no key is empty"));
  }
  Due due;
  {
    absl::MutexLock lock(&mutex_);
    ASSIGN_OR_RETURN(Scope * scope, FindLocked(job, generation));
    if (scope->values.size() >= limits_.keys && !scope->values.contains(key)) {
      return absl::ResourceExhaustedError(
          absl::StrCat("job ", job, " has ", limits_.keys, " rendezvous keys already"));
    }
    scope->values[key] = std::move(value);
    for (auto it = scope->waits.begin(); it != scope->waits.end();) {
      auto [values, missing] = Lookup(scope->values, it->keys);
      if (missing != nullptr) {
        ++it;
        continue;
      }
      due.emplace_back(std::move(it->callback), std::move(values));
      it = scope->waits.erase(it);
    }
  }
  CallAll(due);
  return absl::OkStatus();
}

void Rendezvous::Wait(const std::string& job, Generation generation, std::vector<std::string> keys,
                      absl::Duration deadline, Callback callback) {
  absl::StatusOr<Values> result;
  {
    absl::MutexLock lock(&mutex_);
    const absl::StatusOr<Scope*> scope = FindLocked(job, generation);
    if (!scope.ok()) {
      result = scope.status();
    } else if (keys.size() > kMaxKeysAtOnce) {
      result = absl::ResourceExhaustedError(
          absl::StrCat(keys.size(), " rendezvous keys at once: at most ", kMaxKeysAtOnce));
    } else if (auto [values, missing] = Lookup((*scope)->values, keys); missing == nullptr) {
      result = std::move(values);
    } else if ((*scope)->waits.size() >= limits_.waits) {
      result = absl::ResourceExhaustedError(
          absl::StrCat("job ", job, " has ", limits_.waits, " rendezvous waits already"));
    } else {
      (*scope)->waits.push_back({std::move(keys), deadline, std::move(callback)});
      return;
    }
  }
  callback(std::move(result));
}

absl::Status Rendezvous::Clear(const std::string& job, Generation generation) {
  absl::MutexLock lock(&mutex_);
  ASSIGN_OR_RETURN(Scope * scope, FindLocked(job, generation));
  scope->values.clear();
  return absl::OkStatus();
}

void Rendezvous::Expire(absl::Duration now) {
  Due due;
  {
    absl::MutexLock lock(&mutex_);
    for (auto& [job, scope] : scopes_) {
      for (auto it = scope.waits.begin(); it != scope.waits.end();) {
        if (it->deadline > now) {
          ++it;
          continue;
        }
        const std::string missing = *Lookup(scope.values, it->keys).second;
        due.emplace_back(std::move(it->callback),
                         absl::DeadlineExceededError(absl::StrCat(
                             "rendezvous of job ", job, " generation ", scope.generation.value(),
                             ": key ", missing, " did not come")));
        it = scope.waits.erase(it);
      }
    }
  }
  CallAll(due);
}

absl::StatusOr<Rendezvous::Scope*> Rendezvous::FindLocked(const std::string& job,
                                                          Generation generation) {
  if (stopped_) return Stopped();
  const auto it = scopes_.find(job);
  if (it == scopes_.end()) {
    return absl::NotFoundError(absl::StrCat("no job named ", job, " is starting or running"));
  }
  if (it->second.generation != generation) {
    return absl::AbortedError(absl::StrCat("job ", job, " is at generation ",
                                           it->second.generation.value(), ", not ",
                                           generation.value()));
  }
  return &it->second;
}

}  // namespace takt::job
