// SPDX-License-Identifier: Apache-2.0
// A kernel plan as text. This form is on disk beside the worker, in checkpoints, and passes between
// ranks.
//
//   {"format": "takt-kernel-plan 1",
//    "target": {"compute_capability": "9.0", "sm_count": 132, "cublaslt": "13.0.2",
//               "cudnn": "9.13.0"},
//    "plans": {"matmul 2048x768x3072 ...": {"fused_epilogue": true, "workspace_bytes": 0,
//                                           "algorithm": "0000..." (128 hexadecimal digits)},
//              "attention F 32x1024 ...": {..., "implementation": "cudnn" or "own"}}}
//
// It is not in plan_cache.h because the GPU module links that file and must not link a JSON reader
// or generated protobuf, of which a process holds one copy.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/plan_cache.h"

namespace takt::backend {

inline constexpr std::string_view kPlanFormat = "takt-kernel-plan 1";

// No plan is longer: a choice takes some 300 bytes, and a job has a few dozen choices.
inline constexpr std::size_t kMostPlanBytes = std::size_t{1} << 20;

std::string PlanText(const PlanTarget& target, const PlanCache::Plans& plans);

// Returns the plans of `text`.  where: the origin of the text for error messages, such as a path.
// Errors: kInvalidArgument with FieldErrors (the text is no plan, or of another target).
absl::StatusOr<PlanCache::Plans> ParsePlanText(std::string_view text, std::string_view where,
                                               const PlanTarget& target);

// Merges the plans of `text` into `plans`, or none of them on an error.  Errors: as ParsePlanText.
absl::Status MergePlanText(std::string_view text, std::string_view where, PlanCache& plans);

}  // namespace takt::backend
