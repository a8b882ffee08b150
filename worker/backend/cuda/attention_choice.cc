// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cuda/attention_choice.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/backend/cuda/cudnn_shape.h"

namespace takt::backend::cuda {

std::string AttentionName(const AttentionShape& s, bool backward) {
  return absl::StrCat("attention ", backward ? "I " : "F ", s.batch, "x", s.context, " heads ",
                      s.heads, "/", s.kv_heads, "x", s.head_size, " rows ", s.q_stride, " ",
                      s.kv_stride, " ", s.out_stride, " window ", s.window);
}

absl::StatusOr<bool> AttentionChoices::ByLibrary(const AttentionForward& op) {
  if (!FitsCudnn(op)) return false;
  return Decide(op.shape, /*backward=*/false, [&] { return library_->Build(op); });
}

absl::StatusOr<bool> AttentionChoices::ByLibrary(const AttentionBackward& op) {
  if (!FitsCudnn(op)) return false;
  return Decide(op.shape, /*backward=*/true, [&] { return library_->Build(op); });
}

absl::StatusOr<bool> AttentionChoices::Decide(const AttentionShape& s, bool backward, Build build) {
  const Key key = {s.batch,    s.context,   s.heads,      s.kv_heads, s.head_size,
                   s.q_stride, s.kv_stride, s.out_stride, s.window,   backward ? 1 : 0};
  if (const auto it = decided_.find(key); it != decided_.end()) return it->second;
  const std::string name = AttentionName(s, backward);
  const absl::Status built =
      library_ == nullptr ? absl::FailedPreconditionError("cuDNN is not built in") : build();
  const auto choose = [&]() -> absl::StatusOr<KernelPlan> {
    if (!built.ok() && !absl::IsFailedPrecondition(built)) return built;
    return KernelPlan{.implementation = built.ok() ? kByCudnn : kByOurKernels};
  };
  const auto decide = [&]() -> absl::StatusOr<bool> {
    ASSIGN_OR_RETURN(const KernelPlan plan, plans_.Get(name, choose));
    if (plan.implementation != kByCudnn) return false;
    if (built.ok()) return true;
    return absl::Status(built.code(),
                        absl::StrCat("the kernel plan says that cuDNN computes ", name,
                                     ", and here it cannot: ", std::string(built.message())));
  };
  ASSIGN_OR_RETURN(const bool by_library, decide());
  decided_.emplace(key, by_library);
  return by_library;
}

}  // namespace takt::backend::cuda
