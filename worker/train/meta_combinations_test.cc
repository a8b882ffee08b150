// SPDX-License-Identifier: Apache-2.0
// Checks predictions of memory for jobs that combine fields at random.
#include <cstddef>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/config/job_file.h"
#include "common/config/job_spec_serde.h"
#include "common/layout/rank_layout.h"
#include "common/schedule/generate.h"
#include "gtest/gtest.h"
#include "takt/v1/job_spec.pb.h"
#include "tests/testing/small_jobs.h"

namespace takt::train {
namespace {

using config::JobSpec;

// Draws jobs, the same in every run.
class Draws {
 public:
  template <class T>
  T OneOf(const std::vector<T>& choices) {
    return choices[random_() % choices.size()];
  }
  bool OneIn(unsigned n) { return random_() % n == 0; }

  model::ModelConfig Model() {
    model::ModelConfig model = OneOf<model::ModelConfig>(
        {testing::Gpt2(), testing::Llama(false), testing::Llama(true), testing::Qwen3(),
         testing::Mistral(), testing::Mixtral(), testing::Qwen3Moe()});
    if (OneIn(2)) model = testing::WithWholeVectors(model);
    if (OneIn(2)) {  // what tensor, context and experts can divide
      model.context = model.positions = 16;
      if (model.family == model::Family::kGpt2) model.heads = model.kv_heads = 4;
      if (model.mixture.has_value()) model.mixture->experts = 6;
    }
    return model;
  }

  JobSpec Job() {
    std::vector<std::string> schedules;
    for (const schedule::Family& family : schedule::Families()) schedules.emplace_back(family.name);
    JobSpec job = testing::JobOf(Model(), OneOf(schedules));
    job.name = "drawn";
    config::Parallelism& p = job.parallelism;
    p.pipeline = OneOf<int>({1, 2, 2, 4});
    p.data = OneOf<int>({1, 1, 2, 4});
    if (OneIn(3)) p.tensor = 2;
    if (OneIn(4)) p.tensor_leaves = 2;
    if (OneIn(5)) p.context = 2;
    if (OneIn(4)) p.expert = 2;
    if (OneIn(5)) p.data_leaves = 4;
    p.shard = OneOf<config::Shard>(
        {config::Shard::kNone, config::Shard::kOptimizer, config::Shard::kParameters});
    p.reshard = OneOf<config::Reshard>({config::Reshard::kAuto, config::Reshard::kAlways});
    p.recompute = {OneOf<model::Recompute>(
        {model::Recompute::kNone, model::Recompute::kSelective, model::Recompute::kFull})};
    p.vocabulary = OneOf<config::Vocabulary>(
        {config::Vocabulary::kLast, config::Vocabulary::kLast, config::Vocabulary::kSpread});
    if (OneIn(2)) job.precision = config::Precision::kBf16;
    if (OneIn(4)) job.residual = config::Precision::kBf16;
    if (OneIn(6)) job.fp8 = model::Fp8Recipe::kBlock;
    if (OneIn(4)) job.barrier = config::Barrier::kNever;
    if (OneIn(4)) job.exact = false;
    if (OneIn(4)) job.document_end = 3;
    if (OneIn(2)) job.validation = config::Validation{.path = "v", .every_steps = 1};
    if (OneIn(5)) job.muon = config::Muon{.clip_norm = 0};
    if (p.schedule == "pipedream-2bw" && OneIn(2)) job.error_feedback = 1;
    return job;
  }

 private:
  std::mt19937 random_{20'26};
};

// Lays out a rank of the first replica.
layout::RankLayout LayOut(const JobSpec& job, const plan::Plan& plan, std::size_t rank,
                          config::DeviceKind device) {
  const bool validates = !plan.validation_programs.empty();
  return layout::LayOutRank({.model = plan.model,
                             .partition = plan.partition,
                             .program = plan.programs[rank],
                             .validation = validates ? &plan.validation_programs[rank] : nullptr,
                             .num_replicas = plan.mesh.num_replicas(),
                             .device = device,
                             .vocabulary_ends = plan.vocabulary_ends,
                             .replica = 0,
                             .leaves = job.parallelism.LeavesPerReplica(plan.mesh.dp_size)});
}

// Returns what a trainer allocates of it: the process is there, and the GPU's backend is not.
MemoryBytes OfTrainer(const layout::RankLayout& layout) {
  MemoryBytes bytes = layout.bytes();
  bytes[MemoryKind::kProcess] = 0;
  for (const layout::Allocation& taken : layout.gpu.allocations)
    bytes[taken.kind] -= AllocatedBytes(taken.bytes);
  return bytes;
}

TEST(MetaRun, AllocatesWhatIsPredictedOfAnyCombination) {
  constexpr int kDrawn = 3000, kPlanned = 250;
  Draws draws;
  int planned = 0;
  for (int i = 0; i < kDrawn; ++i) {
    const absl::StatusOr<JobSpec> job = config::ToJobSpec(config::ToProto(draws.Job()));
    const config::DeviceKind device =
        draws.OneIn(3) ? config::DeviceKind::kCuda : config::DeviceKind::kCpu;
    if (!job.ok()) continue;
    const absl::StatusOr<plan::Plan> plan =
        plan::MakePlan(*job, {.max_workers = 64, .device = device});
    if (!plan.ok()) continue;
    ++planned;
    SCOPED_TRACE(absl::StrCat("draw ", i, device == config::DeviceKind::kCuda ? ", on GPUs" : "",
                              ":\n", config::FormatJobFile(config::ToProto(*job))));
    for (std::size_t rank = 0; rank < plan->programs.size(); ++rank) {
      const layout::RankLayout layout = LayOut(*job, *plan, rank, device);
      if (SharesOptimizer(*plan)) {  // it predicts the largest shards
        EXPECT_LE(layout.bytes().total(), plan->memory[rank].total());
      } else {
        EXPECT_EQ(ToString(layout.bytes()), ToString(plan->memory[rank]));
      }
      const absl::StatusOr<MetaReport> report =
          testing::RunRank(*job, *plan, static_cast<int>(rank));
      ASSERT_TRUE(report.ok()) << report.status();
      const MemoryBytes expected = OfTrainer(layout);
      ASSERT_EQ(ToString(report->counts.bytes), ToString(expected)) << "rank " << rank;
      EXPECT_EQ(report->counts.peak_bytes, expected.total());
    }
  }
  EXPECT_GE(planned, kPlanned);
  RecordProperty("planned", planned);
}

}  // namespace
}  // namespace takt::train
