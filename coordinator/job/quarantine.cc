// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/quarantine.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/log.h"

namespace takt::job {
namespace {

using store::WorkerFault;
using store::WorkerRecord;

constexpr std::size_t kMostFaults = 16;  // of a worker

std::string TextOf(const WorkerFault& fault) {
  return absl::StrCat(absl::FormatTime("%Y-%m-%d %H:%M:%S", fault.time, absl::UTCTimeZone()),
                      " job ", fault.job, ": ", fault.what);
}

}  // namespace

bool Quarantine::IsQuarantined(const WorkerRecord& record, absl::Time now) const {
  // A wall clock that was set back makes no quarantine longer.
  return now < record.quarantined_until && record.quarantined_until - now <= options_.longest;
}

bool Quarantine::Deserves(const WorkerRecord& record, absl::Time now) const {
  const auto suffice = [&](int least, absl::Duration within) {
    int faults = 0;
    std::set<std::string> jobs;
    for (const WorkerFault& fault : record.faults) {
      if (now - fault.time > within) continue;
      ++faults;
      jobs.insert(fault.job);
    }
    return faults >= least && static_cast<int>(jobs.size()) >= options_.jobs;
  };
  return suffice(options_.soon_faults, options_.soon) ||
         suffice(options_.late_faults, options_.late);
}

absl::Duration Quarantine::TimeAfter(int quarantines) const {
  return std::min(options_.first * std::exp2(std::clamp(quarantines, 0, 30)), options_.longest);
}

void Quarantine::Blame(const std::string& worker, WorkerFault fault, int num_workers) {
  const absl::Time now = fault.time;
  const auto is_quarantined = [&](const auto& entry) { return IsQuarantined(entry.second, now); };
  const auto quarantined = std::ranges::count_if(records_, is_quarantined);
  WorkerRecord& record = records_[worker];
  if (record.faults.size() == kMostFaults) record.faults.erase(record.faults.begin());
  record.faults.push_back(std::move(fault));
  const bool deserves = Deserves(record, now) && !IsQuarantined(record, now);
  const bool room = quarantined < std::max(1, static_cast<int>(options_.share * num_workers));
  if (deserves && room) {
    record.quarantined_until = now + TimeAfter(record.quarantines);
    ++record.quarantines;
    spared_.erase(worker);
  } else if (deserves) {
    spared_.insert(worker);
  }
  changes_[worker] = record;
  Log(LogLevel::kWarning, "worker blamed",
      {{"worker", worker},
       {"job", record.faults.back().job},
       {"what", record.faults.back().what},
       {"quarantined", IsQuarantined(record, now) ? "true" : "false"},
       {"deserves_quarantine", deserves ? "true" : "false"}});
}

void Quarantine::Trust(const std::string& worker) {
  if (records_.erase(worker) == 0) return;
  changes_[worker] = WorkerRecord();
  spared_.erase(worker);
}

std::set<std::string> Quarantine::Forgive(const std::string& job, const std::string& what,
                                          absl::Time now) {
  std::set<std::string> forgiven;
  for (auto it = records_.begin(); it != records_.end();) {
    auto& [worker, record] = *it;
    const auto is_forgiven = [&](const WorkerFault& fault) {
      return fault.job == job && fault.what == what;
    };
    if (std::erase_if(record.faults, is_forgiven) == 0) {
      ++it;
      continue;
    }
    forgiven.insert(worker);
    if (!Deserves(record, now)) spared_.erase(worker);
    const absl::Time begin = record.quarantined_until - TimeAfter(record.quarantines - 1);
    if (IsQuarantined(record, now) && !Deserves(record, begin)) {
      --record.quarantines;
      record.quarantined_until = absl::InfinitePast();
    }
    const bool clean = record.faults.empty();
    Log(LogLevel::kInfo, "worker no longer blamed",
        {{"worker", worker}, {"job", job}, {"what", what}});
    changes_[worker] = clean ? WorkerRecord() : record;
    it = clean ? records_.erase(it) : std::next(it);
  }
  return forgiven;
}

std::set<std::string> Quarantine::Tick(absl::Time now) {
  std::set<std::string> over;
  for (auto it = records_.begin(); it != records_.end();) {
    auto& [worker, record] = *it;
    const bool quarantined = IsQuarantined(record, now);
    if (!quarantined && record.quarantined_until != absl::InfinitePast()) {
      over.insert(worker);
      // A wall clock that is set later must not bring it back.
      record.quarantined_until = absl::InfinitePast();
      changes_[worker] = record;
    }
    const bool old = record.faults.empty() || now - record.faults.back().time > options_.late;
    if (old && !quarantined) {
      over.insert(worker);
      changes_[worker] = WorkerRecord();
      spared_.erase(worker);
      it = records_.erase(it);
    } else {
      ++it;
    }
  }
  return over;
}

membership::Blame Quarantine::Of(const std::string& worker, absl::Time now) const {
  const auto found = records_.find(worker);
  if (found == records_.end()) return {};
  const WorkerRecord& record = found->second;
  membership::Blame blame{.quarantined = IsQuarantined(record, now),
                          .until = record.quarantined_until};
  std::vector<std::string> reasons;
  for (const WorkerFault& fault : record.faults) {
    blame.score += std::exp2(-absl::FDivDuration(now - fault.time, options_.late));
    reasons.push_back(TextOf(fault));
  }
  if (spared_.contains(worker))
    reasons.emplace_back("not quarantined, because too many workers are already");
  blame.reasons = absl::StrJoin(reasons, "; ");
  return blame;
}

std::map<std::string, int> Quarantine::BlamedBy(const std::string& job, absl::Time now) const {
  std::map<std::string, int> blamed;
  for (const auto& [worker, record] : records_) {
    for (const WorkerFault& fault : record.faults) {
      if (fault.job == job && now - fault.time <= options_.soon) ++blamed[worker];
    }
  }
  return blamed;
}

Quarantine::Records Quarantine::TakeChanges() { return std::exchange(changes_, {}); }

}  // namespace takt::job
