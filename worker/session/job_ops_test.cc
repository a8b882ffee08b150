// SPDX-License-Identifier: Apache-2.0
#include "worker/session/job_ops.h"

#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "common/plan/plan.h"
#include "gtest/gtest.h"
#include "worker/backend/cuda/product.h"
#include "worker/train/meta_run.h"

namespace takt::session {
namespace {

using model::Recompute;

model::ModelConfig Gpt2() {
  return {.layers = 8,
          .hidden = 36,
          .heads = 3,
          .kv_heads = 3,
          .inner = 100,
          .context = 19,
          .positions = 23,
          .vocab = 131};
}

model::ModelConfig Llama(bool tied) {
  return {.family = tied ? model::Family::kQwen2 : model::Family::kLlama,
          .layers = 8,
          .hidden = 36,
          .heads = 6,
          .kv_heads = 2,
          .head_size = 10,
          .inner = 50,
          .context = 17,
          .positions = 17,
          .vocab = 67,
          .tied_head = tied};
}

config::JobSpec JobOf(const model::ModelConfig& model, const std::string& schedule) {
  config::JobSpec job;
  job.model = model;
  job.train = {{.path = "nowhere"}};
  job.global_batch = 32;
  job.microbatch = 2;
  job.adamw.clip_norm = 0;
  job.parallelism.pipeline = 2;
  job.parallelism.schedule = schedule;
  return job;
}

absl::StatusOr<train::MetaReport> RunRank(const config::JobSpec& job, const plan::Plan& plan,
                                          int rank, backend::OpListener listener = nullptr) {
  return train::RunOnMeta(
      {.job = &job,
       .model = &plan.model,
       .partition = &plan.partition,
       .program = &plan.programs[rank],
       .validation_program =
           plan.validation_programs.empty() ? nullptr : &plan.validation_programs[rank],
       .mesh = plan.mesh,
       .rank = plan.mesh.RankOf(PpRank(rank), DpRank(0))},
      std::move(listener));
}

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

TEST(ShowOps, TellsOfEveryProductOfEveryRank) {
  using enum Recompute;
  int programs = 0;
  for (const model::ModelConfig& model : {Gpt2(), Llama(false), Llama(true)}) {
    for (const char* schedule : {"1f1b", "zb-v", "pipedream-2bw"}) {
      for (const config::Precision precision :
           {config::Precision::kF32, config::Precision::kBf16}) {
        for (const config::DeviceKind device :
             {config::DeviceKind::kCpu, config::DeviceKind::kCuda}) {
          config::JobSpec job = JobOf(model, schedule);
          job.precision = precision;
          job.validation = {.path = "nowhere", .every_steps = 2, .batches = 2};
          job.parallelism.recompute = {kNone, kFull};
          if (std::string_view(schedule) == "zb-v")
            job.parallelism.recompute = {kNone, kFull, kSelective, kNone};
          const auto plan = plan::MakePlan(job, {.max_workers = 8, .device = device});
          ASSERT_TRUE(plan.ok()) << plan.status();
          std::set<std::string> shown, run;
          const auto gather = [](std::set<std::string>& keys) {
            return [&keys](const backend::Op& op) {
              AddKeys(op, keys);
              return absl::OkStatus();
            };
          };
          ASSERT_EQ(ShowOps(job, plan->partition, device, gather(shown)), absl::OkStatus());
          for (int rank = 0; rank < plan->mesh.pp_size; ++rank) {
            ASSERT_TRUE(RunRank(job, *plan, rank, gather(run)).ok());
            ++programs;
          }
          for (const std::string& key : run)
            EXPECT_TRUE(shown.contains(key)) << schedule << ": " << key;
          EXPECT_GE(run.size(), 10u);
        }
      }
    }
  }
  EXPECT_EQ(programs, 72);
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
