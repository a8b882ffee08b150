// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/backend/backend.h"
#include "worker/backend/forwarding_backend.h"
#include "worker/backend/kernel_plans.h"
#include "worker/backend/plan_cache.h"

namespace takt::testing {

// Backends whose products ask a kernel plan first, as those of a GPU do. The products themselves
// are computed by the backends of `computing`. Factories with different `seed` choose different
// plans.
class PlannedBackends final : public backend::BackendFactory, public backend::KernelPlans {
 public:
  PlannedBackends(backend::PlanTarget target, std::uint64_t seed,
                  std::unique_ptr<backend::BackendFactory> computing = nullptr)
      : seed_(seed), cache_(std::move(target)), computing_(std::move(computing)) {}

  absl::StatusOr<std::unique_ptr<backend::Backend>> CreateCompute() override {
    ASSIGN_OR_RETURN(auto backend, computing_->CreateCompute());
    return std::make_unique<Planned>(*this, std::move(backend));
  }
  absl::StatusOr<std::unique_ptr<backend::MemoryBackend>> CreateMemory(
      backend::StreamKind kind) override {
    return computing_->CreateMemory(kind);
  }
  bool memory_is_host() const override { return computing_->memory_is_host(); }
  backend::KernelPlans* kernel_plans() override { return this; }

  backend::PlanCache& plans() override { return cache_; }
  absl::Status Choose(const backend::Op& op) override {
    const std::string key = KeyOf(op);
    if (key.empty()) return absl::OkStatus();
    return cache_
        .Get(key,
             [this] {
               ++num_chosen_;
               return backend::KernelPlan{.algorithm = {seed_}};
             })
        .status();
  }
  int num_chosen() const { return num_chosen_; }

  // Returns "" if the op needs no choice.
  static std::string KeyOf(const backend::Op& op) {
    return std::visit(
        [&op]<class T>(const T& o) -> std::string {
          if constexpr (requires { o.m, o.n, o.k; }) {
            std::string key = absl::StrCat("op ", op.index(), " ", o.m, "x", o.n, "x", o.k);
            if constexpr (requires { o.accumulate; })
              absl::StrAppend(&key, o.accumulate ? " +" : "");
            return key;
          } else {
            return "";
          }
        },
        op);
  }

 private:
  class Planned final : public backend::ForwardingBackend {
   public:
    Planned(PlannedBackends& owner, std::unique_ptr<backend::Backend> inner)
        : ForwardingBackend(*inner), owner_(owner), inner_(std::move(inner)) {}
    absl::Status Run(const backend::Op& op) override {
      RETURN_IF_ERROR(owner_.Choose(op));
      return ForwardingBackend::Run(op);
    }
    absl::Status Prepare(const backend::Op& op) override {
      RETURN_IF_ERROR(owner_.Choose(op));
      return ForwardingBackend::Prepare(op);
    }

   private:
    PlannedBackends& owner_;
    const std::unique_ptr<backend::Backend> inner_;
  };

  const std::uint64_t seed_;
  std::atomic<int> num_chosen_ = 0;
  backend::PlanCache cache_;
  const std::unique_ptr<backend::BackendFactory> computing_;
};

}  // namespace takt::testing
