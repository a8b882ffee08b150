// SPDX-License-Identifier: Apache-2.0
// Decides which kernels compute attention: cuDNN's or ours. Both have their own bits and speed, so
// the decision is part of the kernel plan, which all ranks of a job share. It needs no device.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/cuda/attention.h"
#include "worker/backend/ops.h"
#include "worker/backend/plan_cache.h"

namespace takt::backend::cuda {

// Returns the key in a kernel plan: "attention F 32x1024 heads 12/12x64 rows 2304 2304 768 window
// 0". The backward is "attention I ...".
std::string AttentionName(const AttentionShape& shape, bool backward);

// Thread: its backend's.
class AttentionChoices {
 public:
  // plans, library: borrowed. library: null if it is not built in.
  AttentionChoices(PlanCache& plans, Attention* library) : plans_(plans), library_(library) {}

  // Returns whether the library computes `op`; it has built its kernels then. Where the plan has no
  // choice, ours are chosen if the library has no kernel for the shape.
  // Errors: kFailedPrecondition (a frozen plan lacks the shape; the plan says that the library
  // computes it, which has no such kernel here or is not built in), those of the library.
  absl::StatusOr<bool> ByLibrary(const AttentionForward& op);
  absl::StatusOr<bool> ByLibrary(const AttentionBackward& op);

 private:
  using Key = std::array<std::int64_t, 10>;
  using Build = absl::FunctionRef<absl::Status()>;
  absl::StatusOr<bool> Decide(const AttentionShape& shape, bool backward, Build build);

  PlanCache& plans_;
  Attention* const library_;
  std::map<Key, bool> decided_;
};

}  // namespace takt::backend::cuda
