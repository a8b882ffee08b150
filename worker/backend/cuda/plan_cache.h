// SPDX-License-Identifier: Apache-2.0
// Which kernel computes which shape. Kernels of one shape sum in different orders, so a job's bits
// hang on these choices: one rank makes them, all ranks use them, checkpoints keep them
// (plan_cache_text.h is their form on the way).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace takt::backend::cuda {

// Where a choice holds: algorithms are numbers of one library's version, and the best one is that
// of a kind of device.
struct PlanTarget {
  std::string compute_capability;  // "9.0"
  int sm_count = 0;
  std::string cublaslt;  // version, "13.0.2"
  std::string cudnn;     // empty: built without

  bool operator==(const PlanTarget&) const = default;
};

// "sm 9.0 x 132, cublasLt 13.0.2, cudnn 9.13.0"
std::string ToString(const PlanTarget& target);

// What a choice consists of.
struct KernelPlan {
  // Whether the library adds the bias as it writes the product, or a kernel of ours after it.
  bool fused_epilogue = true;
  std::array<std::uint64_t, 8> algorithm{};  // opaque: the library's
  std::int64_t workspace_bytes = 0;

  bool operator==(const KernelPlan&) const = default;
};

// Thread-safe.
class PlanCache {
 public:
  using Plans = std::map<std::string, KernelPlan, std::less<>>;

  explicit PlanCache(PlanTarget target = {}) : target_(std::move(target)) {}

  // The plan of `key`; if there is none yet, what `choose` says, for good. Two that choose at the
  // same time both get the choice of the first.
  // Errors: kFailedPrecondition (frozen, and no plan: names the key), those of `choose`.
  absl::StatusOr<KernelPlan> Get(std::string_view key,
                                 const std::function<absl::StatusOr<KernelPlan>()>& choose);

  // From here on what is chosen is the same wherever the target is: neither timed nor offered.
  void EndTimings();
  bool may_time() const;

  // From here on Get only looks up.
  void Freeze();
  bool frozen() const;

  // Takes those that it has no plan of its own for: what was chosen first holds.
  void Merge(const Plans& plans);

  // What Get takes before it chooses: of earlier jobs, say, of which this one may need a few. It is
  // no plan of this cache until then.
  void Offer(Plans plans);

  const PlanTarget& target() const { return target_; }
  Plans plans() const;

 private:
  const PlanTarget target_;
  mutable absl::Mutex mutex_;
  Plans plans_ ABSL_GUARDED_BY(mutex_);
  Plans offered_ ABSL_GUARDED_BY(mutex_);
  bool may_time_ ABSL_GUARDED_BY(mutex_) = true;
  bool frozen_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace takt::backend::cuda
