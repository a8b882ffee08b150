// SPDX-License-Identifier: Apache-2.0
// Sorts the workers of a cluster by what they can do, so that the queue counts them instead of
// choosing among them. Workers of one kind are interchangeable.
#pragma once

#include <compare>
#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "coordinator/placement/queue.h"

namespace takt::placement {

// Kinds compare by what the workers can do. A job takes first those that can do least, and of
// these the newest ones.
struct WorkerKind {
  bool has_gpu = false;
  model::Fp8Recipe fp8 = model::Fp8Recipe::kNone;
  bool has_nccl = false, shares_gpu = false;
  std::string gpu;  // if others use it too
  int older = 0;    // by so many versions of the protocol than this program
  auto operator<=>(const WorkerKind&) const = default;
};

bool Serves(const WorkerKind& kind, const Need& need);

// Immutable.
class WorkerKinds final {
 public:
  explicit WorkerKinds(const std::vector<GangWorker>& workers);

  std::size_t size() const { return kinds_.size(); }
  const WorkerKind& operator[](std::size_t index) const { return kinds_[index]; }
  // worker: one of those that were given to the constructor.
  std::size_t IndexOf(const GangWorker& worker) const;
  bool Serves(const GangWorker& worker, const Need& need) const {
    return placement::Serves(kinds_[IndexOf(worker)], need);
  }

 private:
  WorkerKind KindOf(const GangWorker& worker) const;

  std::set<std::string> shared_gpus_;
  std::vector<WorkerKind> kinds_;  // ascending
};

}  // namespace takt::placement
