// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/rendezvous.h"

#include <iterator>
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

absl::Status Stopped() { return absl::UnavailableError("the coordinator is stopping; ask again"); }

}  // namespace

void Rendezvous::Stop() {
  Due due;
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
    for (auto& [job, scope] : scopes_) {
      for (auto& [key, waits] : scope.waits) {
        for (Waiting& wait : waits) due.emplace_back(std::move(wait.callback), Stopped());
      }
    }
    scopes_.clear();
  }
  CallAll(due);
}

void Rendezvous::Open(const std::string& job, Generation generation, int num_ranks) {
  Close(job);
  absl::MutexLock lock(&mutex_);
  if (stopped_) return;
  Scope& scope = scopes_[job];
  scope.generation = generation;
  scope.num_ranks = num_ranks;
}

void Rendezvous::Close(const std::string& job) {
  Due due;
  {
    absl::MutexLock lock(&mutex_);
    const auto it = scopes_.find(job);
    if (it == scopes_.end()) return;
    const absl::Status over = absl::AbortedError(
        absl::StrCat("generation ", it->second.generation.value(), " of job ", job, " is over"));
    for (auto& [key, waits] : it->second.waits) {
      for (Waiting& wait : waits) due.emplace_back(std::move(wait.callback), over);
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
    RETURN_IF_ERROR(CheckRoomLocked(job, *scope, key, value));
    const auto [kept, is_new] = scope->values.try_emplace(key);
    scope->bytes += (is_new ? key.size() : 0) + value.size();
    scope->bytes -= kept->second.size();
    kept->second = std::move(value);
    std::list<Waiting> waits;
    if (auto queue = scope->waits.extract(key); !queue.empty()) waits = std::move(queue.mapped());
    while (!waits.empty()) {
      Waiting& wait = waits.front();
      if (!IsOver(*scope, wait)) {
        std::list<Waiting>& queue = scope->waits[wait.keys[wait.there]];
        queue.splice(queue.end(), waits, waits.begin());
        continue;
      }
      due.emplace_back(std::move(wait.callback), ValuesOf(*scope, wait.keys));
      waits.pop_front();
      --scope->num_waits;
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
    const absl::StatusOr<Scope*> found = FindLocked(job, generation);
    Waiting wait{.keys = std::move(keys), .deadline = deadline};
    if (!found.ok()) {
      result = found.status();
    } else if (wait.keys.size() > kMaxKeysAtOnce) {
      result = absl::ResourceExhaustedError(
          absl::StrCat(wait.keys.size(), " rendezvous keys at once: at most ", kMaxKeysAtOnce));
    } else if (Scope& scope = **found; IsOver(scope, wait)) {
      result = ValuesOf(scope, wait.keys);
    } else if (const std::size_t most = limits_.waits.Of(scope.num_ranks);
               scope.num_waits >= most) {
      result = absl::ResourceExhaustedError(absl::StrCat(
          "job ", job, " of ", scope.num_ranks, " ranks has ", most, " rendezvous waits already"));
    } else {
      wait.callback = std::move(callback);
      ++scope.num_waits;
      scope.waits[wait.keys[wait.there]].push_back(std::move(wait));
      return;
    }
  }
  callback(std::move(result));
}

absl::Status Rendezvous::Clear(const std::string& job, Generation generation) {
  absl::MutexLock lock(&mutex_);
  ASSIGN_OR_RETURN(Scope * scope, FindLocked(job, generation));
  scope->values.clear();
  scope->bytes = 0;
  for (auto& [key, waits] : scope->waits) {
    for (Waiting& wait : waits) wait.there = 0;
  }
  return absl::OkStatus();
}

void Rendezvous::Expire(absl::Duration now) {
  Due due;
  {
    absl::MutexLock lock(&mutex_);
    for (auto& [job, scope] : scopes_) {
      for (auto queue = scope.waits.begin(); queue != scope.waits.end();) {
        auto& [missing, waits] = *queue;
        for (auto it = waits.begin(); it != waits.end();) {
          if (it->deadline > now) {
            ++it;
            continue;
          }
          due.emplace_back(std::move(it->callback),
                           absl::DeadlineExceededError(absl::StrCat(
                               "rendezvous of job ", job, " generation ", scope.generation.value(),
                               ": key ", missing, " did not come")));
          it = waits.erase(it);
          --scope.num_waits;
        }
        queue = waits.empty() ? scope.waits.erase(queue) : std::next(queue);
      }
    }
  }
  CallAll(due);
}

bool Rendezvous::IsOver(const Scope& scope, Waiting& wait) {
  while (wait.there < wait.keys.size() && scope.values.contains(wait.keys[wait.there]))
    ++wait.there;
  return wait.there == wait.keys.size();
}

Rendezvous::Values Rendezvous::ValuesOf(const Scope& scope, const std::vector<std::string>& keys) {
  Values values;
  values.reserve(keys.size());
  for (const std::string& key : keys) values.push_back(scope.values.at(key));
  return values;
}

absl::Status Rendezvous::CheckRoomLocked(const std::string& job, const Scope& scope,
                                         const std::string& key, const std::string& value) const {
  const auto refuse = [&](std::size_t most, const char* what) {
    return absl::ResourceExhaustedError(absl::StrCat("job ", job, " of ", scope.num_ranks,
                                                     " ranks has ", most, " ", what, " already"));
  };
  const std::size_t most_keys = limits_.keys.Of(scope.num_ranks);
  if (scope.values.size() >= most_keys && !scope.values.contains(key))
    return refuse(most_keys, "rendezvous keys");
  const std::size_t most_bytes = limits_.bytes.Of(scope.num_ranks);
  if (scope.bytes + key.size() + value.size() > most_bytes)
    return refuse(most_bytes, "bytes of rendezvous keys");
  return absl::OkStatus();
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
