// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cuda/attention_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace takt::backend::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

alignas(16) Bf16 halves[1024];
float floats[64];

AttentionForward Forward() {
  return {.shape = {.batch = 2,
                    .context = 3,
                    .heads = 4,
                    .kv_heads = 2,
                    .head_size = 8,
                    .q_stride = 64,
                    .kv_stride = 64,
                    .out_stride = 32},
          .q = halves,
          .k = halves + 32,
          .v = halves + 48,
          .output = halves + 512,
          .logsumexp = floats};
}

// Builds what `status` says.
class FakeLibrary final : public Attention {
 public:
  absl::Status Build(const AttentionForward& /*op*/) override { return Build(); }
  absl::Status Build(const AttentionBackward& /*op*/) override { return Build(); }
  absl::Status Prepare(const AttentionForward& /*op*/) override { return status; }
  absl::Status Prepare(const AttentionBackward& /*op*/) override { return status; }
  absl::Status Run(const AttentionForward& /*op*/) override { return status; }
  absl::Status Run(const AttentionBackward& /*op*/) override { return status; }

  absl::Status status;
  int builds = 0;

 private:
  absl::Status Build() {
    ++builds;
    return status;
  }
};

std::string ImplementationIn(const PlanCache& plans) {
  const PlanCache::Plans all = plans.plans();
  const auto it = all.find(AttentionName(Forward().shape, /*backward=*/false));
  return it == all.end() ? "" : it->second.implementation;
}

TEST(AttentionChoices, TheLibraryComputesWhatItHasAKernelFor) {
  PlanCache plans;
  FakeLibrary library;
  AttentionChoices choices(plans, &library);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(choices.ByLibrary(Forward()).value());
  EXPECT_EQ(library.builds, 1);
  EXPECT_EQ(ImplementationIn(plans), kByCudnn);
}

TEST(AttentionChoices, OurKernelsComputeWhatItHasNoKernelFor) {
  PlanCache plans;
  FakeLibrary library;
  library.status = absl::FailedPreconditionError("no engine");
  EXPECT_FALSE(AttentionChoices(plans, &library).ByLibrary(Forward()).value());
  EXPECT_EQ(ImplementationIn(plans), kByOurKernels);
  // Another rank follows the plan, although its library has a kernel.
  library.status = absl::OkStatus();
  EXPECT_FALSE(AttentionChoices(plans, &library).ByLibrary(Forward()).value());
}

TEST(AttentionChoices, AFaultOfTheLibraryIsNoChoice) {
  PlanCache plans;
  FakeLibrary library;
  library.status = absl::InternalError("libcudnn_graph.so.9 cannot be opened");
  AttentionChoices choices(plans, &library);
  EXPECT_EQ(choices.ByLibrary(Forward()).status(), library.status);
  EXPECT_EQ(ImplementationIn(plans), "");
  library.status = absl::OkStatus();
  EXPECT_TRUE(choices.ByLibrary(Forward()).value());
}

TEST(AttentionChoices, ARankThatCannotDoWhatThePlanSaysIsRefusedWithTheReason) {
  PlanCache plans;
  FakeLibrary library;
  ASSERT_TRUE(AttentionChoices(plans, &library).ByLibrary(Forward()).value());
  library.status = absl::FailedPreconditionError("no engine");
  const absl::Status refused = AttentionChoices(plans, &library).ByLibrary(Forward()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("attention F 2x3 heads 4/2x8"), HasSubstr("no engine")));
  const absl::Status without = AttentionChoices(plans, nullptr).ByLibrary(Forward()).status();
  EXPECT_THAT(std::string(without.message()), HasSubstr("not built in"));
}

TEST(AttentionChoices, AFrozenPlanThatLacksTheShapeIsRefused) {
  PlanCache plans;
  plans.Freeze();
  FakeLibrary library;
  EXPECT_EQ(AttentionChoices(plans, &library).ByLibrary(Forward()).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(AttentionChoices, WhatOnlyOurKernelsCanComputeIsInNoPlan) {
  PlanCache plans;
  plans.Freeze();
  FakeLibrary library;
  AttentionForward in_f32 = Forward();
  in_f32.q = in_f32.k = in_f32.v = floats;
  in_f32.output = floats;
  EXPECT_FALSE(AttentionChoices(plans, &library).ByLibrary(in_f32).value());
  EXPECT_EQ(library.builds, 0);
}

}  // namespace
}  // namespace takt::backend::cuda
