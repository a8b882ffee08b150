// SPDX-License-Identifier: Apache-2.0
// Records which kernel computes which shape. Kernels of one shape sum in different orders, so the
// bits of a job depend on these choices: one rank makes them, all ranks use them, and checkpoints
// keep them in the form of plan_cache_text.h.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace takt::backend {

// The kind of device and the library versions for which a choice holds: an algorithm is a number
// that only one version of its library understands.
struct PlanTarget {
  std::string compute_capability;  // "9.0"
  int sm_count = 0;
  std::string cublaslt;  // version, "13.0.2"
  std::string cudnn;     // empty: built without

  bool operator==(const PlanTarget&) const = default;
};

// "sm 9.0 x 132, cublasLt 13.0.2, cudnn 9.13.0"
std::string ToString(const PlanTarget& target);

// One choice.
struct KernelPlan {
  // True: the library adds the bias as it writes the product. False: a kernel of ours adds it
  // later.
  bool fused_epilogue = true;
  std::array<std::uint64_t, 8> algorithm{};  // opaque; only the library reads it
  std::int64_t workspace_bytes = 0;
  std::string implementation;  // of attention: one of those below; empty: this is a product

  bool operator==(const KernelPlan&) const = default;
};

inline constexpr char kByCudnn[] = "cudnn", kByOurKernels[] = "own";

// Thread-safe.
class PlanCache {
 public:
  using Plans = std::map<std::string, KernelPlan, std::less<>>;

  explicit PlanCache(PlanTarget target = {}) : target_(std::move(target)) {}

  // Returns the plan of `key`. If there is none, it calls `choose` and keeps the answer for good.
  // If two callers choose at the same time, both get the choice that came first. Errors:
  // kFailedPrecondition (frozen and without a plan; names the key), those of `choose`.
  absl::StatusOr<KernelPlan> Get(std::string_view key,
                                 const std::function<absl::StatusOr<KernelPlan>()>& choose);

  // From now on choices depend on the target alone: none is timed and no offered plan is taken.
  void EndTimings();
  bool may_time() const;

  // From now on Get only looks up.
  void Freeze();

  // Takes the plans whose keys it does not have yet: the first choice of a key stays.
  void Merge(const Plans& plans);

  // Gives plans, for example of earlier jobs, that Get takes rather than choosing. A plan that Get
  // never took is no part of this cache.
  void Offer(Plans plans);

  // Keeps a warning for whoever logs: the modules of GPUs cannot.
  void Warn(std::string warning);
  std::vector<std::string> TakeWarnings();

  const PlanTarget& target() const { return target_; }
  Plans plans() const;

 private:
  const PlanTarget target_;
  mutable absl::Mutex mutex_;
  Plans plans_ ABSL_GUARDED_BY(mutex_);
  Plans offered_ ABSL_GUARDED_BY(mutex_);
  bool may_time_ ABSL_GUARDED_BY(mutex_) = true;
  bool frozen_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::string> warnings_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace takt::backend
