// SPDX-License-Identifier: Apache-2.0
// Checks which ops follow products whose sums may wait (MatmulTransposedBf16::sums_may_wait).
#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/testing/small_jobs.h"
#include "worker/backend/backend.h"
#include "worker/train/meta_run.h"

namespace takt::train {
namespace {

// What waits belongs to one W, and nothing else runs on the backend until it is added.
TEST(WaitingSums, WaitNoLongerThanMatmulTransposedBf16Says) {
  model::ModelConfig gpt2 = testing::WithWholeVectors(testing::Gpt2());
  gpt2.heads = gpt2.kv_heads = 4;
  gpt2.context = 20;
  for (const std::string schedule : {"1f1b", "zb-h1", "zb-v"}) {
    for (const bool exact : {true, false}) {
      for (const int tensor : {1, 2}) {
        SCOPED_TRACE(absl::StrCat(schedule, " exact ", exact, " tensor ", tensor));
        config::JobSpec job = testing::JobOf(gpt2, schedule);
        job.precision = model::Precision::kBf16;
        job.exact = exact;
        job.parallelism.tensor = tensor;
        const absl::StatusOr<plan::Plan> plan =
            plan::MakePlan(job, {.max_workers = 8, .device = config::DeviceKind::kCuda});
        ASSERT_TRUE(plan.ok()) << plan.status();
        bool waits = false;
        int times = 0;
        const auto follow = [&](const backend::Op& op) {
          const auto* const product = std::get_if<backend::MatmulTransposedBf16>(&op);
          EXPECT_TRUE(!waits || product != nullptr || std::holds_alternative<backend::BiasGrad>(op))
              << "op " << op.index();
          if (product == nullptr || product->column_sums == nullptr) return absl::OkStatus();
          waits = product->sums_may_wait;
          times += waits ? 1 : 0;
          return absl::OkStatus();
        };
        for (int rank = 0; rank < plan->mesh.pp_size; ++rank) {
          ASSERT_EQ(testing::RunRank(job, *plan, rank, follow).status(), absl::OkStatus());
          EXPECT_FALSE(waits);
        }
        EXPECT_GT(times, 0);
      }
    }
  }
}

}  // namespace
}  // namespace takt::train
