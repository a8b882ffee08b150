// SPDX-License-Identifier: Apache-2.0
#include "worker/session/job_ops.h"

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <variant>

#include "common/plan/plan.h"
#include "gtest/gtest.h"
#include "tests/testing/small_jobs.h"
#include "worker/backend/cuda/product.h"

namespace takt::session {
namespace {

using model::Recompute;
using testing::Gpt2;
using testing::JobOf;
using testing::Llama;
using testing::Mixtral;

// The part of an op by which a GPU chooses kernels.
void AddKeys(const backend::Op& op, std::set<std::string>& keys) {
  using backend::cuda::CutToVectors;
  using backend::cuda::Product;
  using backend::cuda::WhereRounded;
  if (const auto* product = std::get_if<backend::Matmul>(&op)) {
    keys.insert(ToString(backend::cuda::ProductOf(*product, /*tf32=*/false).shape));
  } else if (const auto* rounded = std::get_if<backend::MatmulBf16>(&op)) {
    const auto& r = *rounded;
    keys.insert(ToString(ProductOf(r, WhereRounded(r.a, r.k, r.a_stride)).shape));
  } else if (const auto* transposed = std::get_if<backend::MatmulTransposedBf16>(&op)) {
    const auto& t = *transposed;
    const Product whole =
        ProductOf(t, WhereRounded(t.a, t.m, t.a_stride), WhereRounded(t.b, t.n, t.b_stride));
    for (const Product& part : CutToVectors(whole)) keys.insert(ToString(part.shape));
  }
}

// keys: borrowed.
backend::OpListener Gatherer(std::set<std::string>& keys) {
  return [&keys](const backend::Op& op) {
    AddKeys(op, keys);
    return absl::OkStatus();
  };
}

TEST(ShowOps, TellsOfEveryProductOfEveryRank) {
  using enum Recompute;
  int programs = 0;
  for (const model::ModelConfig& model :
       {Gpt2(), Llama(false), Llama(true), Mixtral(), testing::WithWholeVectors(Gpt2()),
        testing::WithWholeVectors(Llama(false))}) {
    for (const char* schedule : {"1f1b", "zb-v", "pipedream-2bw"}) {
      for (const config::Precision precision :
           {config::Precision::kF32, config::Precision::kBf16}) {
        for (const config::DeviceKind device :
             {config::DeviceKind::kCpu, config::DeviceKind::kCuda}) {
          config::JobSpec job = JobOf(model, schedule);
          job.precision = precision;
          job.error_feedback = std::string_view(schedule) == "pipedream-2bw" ? 1 : 0;
          job.validation = {.path = "nowhere", .every_steps = 2, .batches = 2};
          job.parallelism.recompute = {kNone, kFull};
          if (std::string_view(schedule) == "zb-v")
            job.parallelism.recompute = {kNone, kFull, kSelective, kNone};
          const auto plan = plan::MakePlan(job, {.max_workers = 8, .device = device});
          ASSERT_TRUE(plan.ok()) << plan.status();
          std::set<std::string> shown, run;
          ASSERT_EQ(ShowOps(job, plan->partition, device, Gatherer(shown)), absl::OkStatus());
          for (int rank = 0; rank < plan->mesh.pp_size; ++rank) {
            ASSERT_TRUE(testing::RunRank(job, *plan, rank, Gatherer(run)).ok());
            ++programs;
          }
          for (const std::string& key : run)
            EXPECT_TRUE(shown.contains(key)) << schedule << ": " << key;
          EXPECT_GE(run.size(), 10u);
        }
      }
    }
  }
  EXPECT_EQ(programs, 144);
}

// Products of the head have the rows of slices, wherever its logits are.
TEST(ShowOps, TellsOfEveryProductOfAHeadInSlices) {
  model::ModelConfig model = testing::WithWholeVectors(Llama(false));
  model.context = model.positions = 1072;
  model.vocab = (1 << 17) - 70;
  for (const char* schedule : {"1f1b", "zb-h1"}) {
    config::JobSpec job = JobOf(model, schedule);
    job.precision = config::Precision::kBf16;
    job.validation = {.path = "nowhere", .every_steps = 2, .batches = 2};
    job.parallelism.vocabulary = config::Vocabulary::kLast;
    const auto plan = plan::MakePlan(job, {.max_workers = 8, .device = config::DeviceKind::kCuda});
    ASSERT_TRUE(plan.ok()) << plan.status();
    std::set<std::string> shown, run;
    ASSERT_EQ(ShowOps(job, plan->partition, config::DeviceKind::kCuda, Gatherer(shown)),
              absl::OkStatus());
    for (int rank = 0; rank < plan->mesh.pp_size; ++rank)
      ASSERT_TRUE(testing::RunRank(job, *plan, rank, Gatherer(run)).ok());
    for (const std::string& key : run) EXPECT_TRUE(shown.contains(key)) << schedule << ": " << key;
    const auto has = [&](const std::string& text) {
      return std::ranges::any_of(
          run, [&](const std::string& key) { return key.find(text) != std::string::npos; });
    };
    EXPECT_TRUE(has("1088")) << schedule;
    EXPECT_TRUE(has("1056")) << schedule;
  }
}

TEST(ShowOps, TellsOfEveryProductOfSplitLayers) {
  model::ModelConfig gpt2 = Gpt2();
  gpt2.heads = gpt2.kv_heads = 4;
  gpt2.context = 20;
  for (const model::ModelConfig& model : {gpt2, Llama(false)}) {
    for (const config::Precision precision : {config::Precision::kF32, config::Precision::kBf16}) {
      for (const int leaves : {0, 2}) {
        config::JobSpec job = JobOf(model, "zb-h1");
        job.precision = precision;
        job.parallelism.tensor = leaves == 0 ? 2 : 1;
        job.parallelism.tensor_leaves = leaves;
        const auto plan =
            plan::MakePlan(job, {.max_workers = 4, .device = config::DeviceKind::kCuda});
        ASSERT_TRUE(plan.ok()) << plan.status();
        std::set<std::string> shown, run;
        ASSERT_EQ(ShowOps(job, plan->partition, config::DeviceKind::kCuda, Gatherer(shown)),
                  absl::OkStatus());
        for (int rank = 0; rank < plan->mesh.pp_size; ++rank)
          ASSERT_TRUE(testing::RunRank(job, *plan, rank, Gatherer(run)).ok());
        for (const std::string& key : run) EXPECT_TRUE(shown.contains(key)) << key;
        EXPECT_GE(run.size(), 10u);
      }
    }
  }
}

TEST(ShowOps, EndsWithTheListenersError) {
  const config::JobSpec job = JobOf(Gpt2(), "1f1b");
  const plan::Plan plan = plan::MakePlan(job, {.max_workers = 2}).value();
  EXPECT_EQ(ShowOps(job, plan.partition, config::DeviceKind::kCpu,
                    [](const backend::Op&) { return absl::DataLossError("no"); }),
            absl::DataLossError("no"));
}

}  // namespace
}  // namespace takt::session
