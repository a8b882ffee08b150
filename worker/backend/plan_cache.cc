// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/plan_cache.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/counted.h"
#include "common/base/status.h"

namespace takt::backend {

std::string ToString(const PlanTarget& target) {
  return absl::StrCat("sm ", target.compute_capability, " x ", target.sm_count, ", cublasLt ",
                      target.cublaslt,
                      target.cudnn.empty() ? "" : absl::StrCat(", cudnn ", target.cudnn));
}

absl::StatusOr<KernelPlan> PlanCache::Get(
    std::string_view key, const std::function<absl::StatusOr<KernelPlan>()>& choose) {
  {
    absl::MutexLock lock(&mutex_);
    if (const auto it = plans_.find(key); it != plans_.end()) return it->second;
    if (frozen_) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the job's kernel plan has no choice for ", std::string(key), " (it has ",
          Counted(std::ssize(plans_), "other"),
          "); a choice of this rank's own could differ from other ranks', so it makes none. "
          "The plan was made for all shapes of the job: this is a bug, please report it"));
    }
    if (const auto it = offered_.find(key); it != offered_.end())
      return plans_.insert(*it).first->second;
  }
  // The lock is not held, because candidates are timed on the device.
  ASSIGN_OR_RETURN(const KernelPlan chosen, choose());
  absl::MutexLock lock(&mutex_);
  return plans_.try_emplace(std::string(key), chosen).first->second;
}

void PlanCache::EndTimings() {
  absl::MutexLock lock(&mutex_);
  may_time_ = false;
  offered_.clear();
}

bool PlanCache::may_time() const {
  absl::MutexLock lock(&mutex_);
  return may_time_;
}

void PlanCache::Freeze() {
  absl::MutexLock lock(&mutex_);
  frozen_ = true;
}

void PlanCache::Merge(const Plans& plans) {
  absl::MutexLock lock(&mutex_);
  plans_.insert(plans.begin(), plans.end());
}

void PlanCache::Offer(Plans plans) {
  absl::MutexLock lock(&mutex_);
  offered_ = std::move(plans);
}

PlanCache::Plans PlanCache::plans() const {
  absl::MutexLock lock(&mutex_);
  return plans_;
}

void PlanCache::Warn(std::string warning) {
  const absl::MutexLock lock(&mutex_);
  warnings_.push_back(std::move(warning));
}

std::vector<std::string> PlanCache::TakeWarnings() {
  const absl::MutexLock lock(&mutex_);
  return std::exchange(warnings_, {});
}

}  // namespace takt::backend
