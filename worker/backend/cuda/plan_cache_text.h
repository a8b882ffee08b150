// SPDX-License-Identifier: Apache-2.0
// A kernel plan as text: on disk beside the worker, between ranks, in checkpoints.
//
//   {"format": "takt-kernel-plan 1",
//    "target": {"compute_capability": "9.0", "sm_count": 132, "cublaslt": "13.0.2", "cudnn":
//    "9.13.0"}, "plans": {"matmul 2048x768x3072 ...": {"fused_epilogue": true, "workspace_bytes":
//    0,
//                                           "algorithm": "0000...": 128 hexadecimal digits}}}
//
// Here and not in plan_cache.h: what reads JSON and names fields stays out of the GPU module.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/cuda/plan_cache.h"

namespace takt::backend::cuda {

inline constexpr std::string_view kPlanFormat = "takt-kernel-plan 1";

// No plan is longer: a choice takes some 300 bytes, a job some dozens of them.
inline constexpr std::size_t kMostPlanBytes = std::size_t{1} << 20;

std::string PlanText(const PlanTarget& target, const PlanCache::Plans& plans);
std::string PlanText(const PlanCache& plans);

// Those of `text`.  where: of what the text is, for errors: a path.
// Errors: kInvalidArgument with FieldErrors: not such a text, or of another target than `target`.
absl::StatusOr<PlanCache::Plans> ParsePlanText(std::string_view text, std::string_view where,
                                               const PlanTarget& target);

// Takes the plans of `text` that `plans` lacks; all of them or, on an error, none.  Errors: as
// ParsePlanText.
absl::Status MergePlanText(std::string_view text, std::string_view where, PlanCache& plans);

}  // namespace takt::backend::cuda
