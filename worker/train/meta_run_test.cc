// SPDX-License-Identifier: Apache-2.0
// Checks that the planner predicts exactly what a trainer asks for, to the byte and to the FLOP.
#include "worker/train/meta_run.h"

#include <cstddef>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/layout/gpu_scratch.h"
#include "common/layout/rank_layout.h"
#include "common/mesh/vocabulary_split.h"
#include "common/model/vocabulary.h"
#include "common/program/compute_part.h"
#include "gtest/gtest.h"
#include "tests/testing/small_jobs.h"

namespace takt::train {
namespace {

using model::Recompute;
using program::Op;
using testing::Gpt2;
using testing::JobOf;
using testing::Llama;
using testing::Mistral;
using testing::Mixtral;
using testing::Qwen3;
using testing::Qwen3Moe;

// Returns the FLOPs of S or T on a rank: its share of the head's products.
double OfWords(const plan::Plan& plan, PpRank rank, const program::Instruction& instruction) {
  const model::LayerCost& head = plan.model.layers.back().cost;
  const std::int64_t vocab = plan.model.config.vocab;
  const double share = static_cast<double>(mesh::WordsOf(plan.vocabulary_ends, rank, vocab).words) /
                       static_cast<double>(vocab);
  if (instruction.op == Op::kVocabularyForward) return share * head.forward_flops;
  if (instruction.op == Op::kLoss) return 0;
  return share * (head.input_grad_flops + head.weight_grad_flops);
}

// Returns the FLOPs of a stage's passes according to the description of the model.
double Described(const plan::Plan& plan, const program::ComputePart& part, bool slices_head) {
  const mesh::Stage& stage = plan.partition[part.stage.value()];
  double flops = 0;
  for (LayerId id = stage.first_layer; id < stage.last_layer; ++id) {
    const bool is_head = id.value() + 1 == std::ssize(plan.model.layers);
    if (is_head && !plan.vocabulary_ends.empty()) continue;  // S and T have its products
    const model::LayerCost& cost = plan.model.layers[id.value()].cost;
    if (is_head && slices_head) {  // B has all of them
      if (part.op == Op::kBackward) flops += cost.Work();
      continue;
    }
    if (part.op == Op::kForward) flops += cost.forward_flops;
    if (part.op == Op::kInputGrad || part.op == Op::kBackward) {
      flops += cost.InputGradFlops(stage.recompute);
    }
    if (part.op == Op::kWeightGrad || part.op == Op::kBackward) flops += cost.weight_grad_flops;
  }
  return flops;
}

// slicing_rank: the rank that computes logits slice by slice; -1: none does.
void ExpectAsPredicted(const config::JobSpec& job,
                       config::DeviceKind device = config::DeviceKind::kCpu,
                       int slicing_rank = -1) {
  const absl::StatusOr<plan::Plan> plan = plan::MakePlan(job, {.max_workers = 8, .device = device});
  ASSERT_TRUE(plan.ok()) << plan.status();
  for (int rank = 0; rank < plan->mesh.pp_size; ++rank) {
    const absl::StatusOr<MetaReport> report = testing::RunRank(job, *plan, rank);
    ASSERT_TRUE(report.ok()) << report.status();
    MemoryBytes predicted = plan->memory[rank];
    predicted[MemoryKind::kProcess] = 0;
    if (device == config::DeviceKind::kCuda) {
      for (const layout::Allocation& taken : layout::LayOutGpuScratch(plan->model).allocations)
        predicted[taken.kind] -= AllocatedBytes(taken.bytes);
    }
    EXPECT_EQ(ToString(report->counts.bytes), ToString(predicted));
    EXPECT_EQ(report->counts.bytes, predicted);
    EXPECT_EQ(report->counts.peak_bytes, predicted.total());
    const program::Program& program = plan->programs[rank];
    const bool sliced = layout::HeadLogitsOf(plan->model, program) == layout::HeadLogits::kSliced;
    EXPECT_EQ(sliced, rank == slicing_rank);
    for (std::size_t i = 0; i < program.body.size(); ++i) {
      const program::Instruction& instruction = program.body[i];
      if (!program::IsCompute(instruction.op)) continue;
      double described = 0;
      if (program::IsOfVocabulary(instruction.op)) {
        described = OfWords(*plan, program.pp_rank, instruction);
      } else if (instruction.op == Op::kOverlap) {
        const program::OverlapParts parts = PartsOf(instruction, program);
        described =
            Described(*plan, parts.forward, sliced) + Described(*plan, parts.backward, sliced);
      } else {
        described = instruction.num_microbatches *
                    Described(*plan, program::WholePart(instruction), sliced);
      }
      EXPECT_DOUBLE_EQ(report->flops[i], described) << ToString(instruction, program);
    }
  }
}

TEST(MetaRun, AllocatesAndComputesWhatIsPredicted) {
  const model::ModelConfig models[] = {Gpt2(),    Llama(false), Llama(true), Qwen3(),
                                       Mistral(), Mixtral(),    Qwen3Moe()};
  for (const model::ModelConfig& model : models) {
    for (const std::string schedule : {"naive", "1f1b", "zb-h1", "interleaved-1f1b", "zb-v",
                                       "dualpipe-v", "dualpipe", "pipedream-2bw"}) {
      for (const Recompute mode : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
        SCOPED_TRACE(absl::StrCat(schedule, " family ", static_cast<int>(model.family),
                                  " recompute ", std::string(Name(mode))));
        config::JobSpec job = JobOf(model, schedule);
        job.parallelism.recompute = {mode};
        job.precision = mode == Recompute::kNone ? model::Precision::kF32 : model::Precision::kBf16;
        if (mode == Recompute::kFull) job.fp8 = model::Fp8Recipe::kBlock;
        job.parallelism.data = mode == Recompute::kSelective ? 2 : 1;
        if (mode == Recompute::kFull) {
          job.validation = config::Validation{.path = "v", .every_steps = 1};
        }
        ExpectAsPredicted(job);
      }
    }
  }
}

// Plans are those of the last rank, which has most words.
TEST(MetaRun, AllocatesAndComputesWhatIsPredictedOfSplitLayers) {
  model::ModelConfig gpt2 = Gpt2();
  gpt2.heads = gpt2.kv_heads = 4;
  gpt2.context = 20;
  for (const model::ModelConfig& model : {gpt2, Llama(false), Llama(true), Qwen3()}) {
    for (const Recompute mode : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      for (const int tensor : {1, 2}) {
        SCOPED_TRACE(absl::StrCat("family ", static_cast<int>(model.family), " tensor ", tensor,
                                  " recompute ", std::string(Name(mode))));
        config::JobSpec job = JobOf(model, mode == Recompute::kSelective ? "zb-h1" : "1f1b");
        job.parallelism.tensor = tensor;
        job.parallelism.tensor_leaves = 2;
        job.parallelism.recompute = {mode};
        job.validation = config::Validation{.path = "v", .every_steps = 1};
        if (mode == Recompute::kFull) job.precision = model::Precision::kBf16;
        ExpectAsPredicted(job);
      }
    }
  }
}

// Without rows nothing is known of what experts compute.
TEST(MetaRun, AllocatesWhatIsPredictedOfSharedExperts) {
  for (model::ModelConfig model : {Mixtral(), Qwen3Moe()}) {
    model.mixture->experts = 6;
    for (const std::string schedule : {"1f1b", "zb-h1", "dualpipe"}) {
      for (const Recompute mode : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
        SCOPED_TRACE(absl::StrCat(schedule, " family ", static_cast<int>(model.family),
                                  " recompute ", std::string(Name(mode))));
        config::JobSpec job = JobOf(model, schedule);
        job.parallelism.recompute = {mode};
        job.precision = mode == Recompute::kNone ? model::Precision::kF32 : model::Precision::kBf16;
        job.parallelism.data = job.parallelism.expert = 2;
        const absl::StatusOr<plan::Plan> plan = plan::MakePlan(job, {.max_workers = 8});
        ASSERT_TRUE(plan.ok()) << plan.status();
        for (int rank = 0; rank < plan->mesh.pp_size; ++rank) {
          const absl::StatusOr<MetaReport> report = testing::RunRank(job, *plan, rank);
          ASSERT_TRUE(report.ok()) << report.status();
          MemoryBytes predicted = plan->memory[rank];
          predicted[MemoryKind::kProcess] = 0;
          EXPECT_EQ(ToString(report->counts.bytes), ToString(predicted));
          EXPECT_EQ(report->counts.peak_bytes, predicted.total());
        }
      }
    }
  }
}

// The averages of a power of two of keys are exact.
TEST(MetaRun, AllocatesAndComputesWhatIsPredictedOfSharedSequences) {
  for (model::ModelConfig model : {Gpt2(), Llama(false), Llama(true), Qwen3(), Mistral()}) {
    model.context = model.positions = 16;
    for (const Recompute mode : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      for (const int context : {2, 4}) {
        SCOPED_TRACE(absl::StrCat("family ", static_cast<int>(model.family), " context ", context,
                                  " recompute ", std::string(Name(mode))));
        config::JobSpec job = JobOf(model, mode == Recompute::kSelective ? "zb-h1" : "1f1b");
        job.parallelism.context = context;
        job.parallelism.recompute = {mode};
        job.validation = config::Validation{.path = "v", .every_steps = 1};
        if (mode == Recompute::kFull) job.precision = model::Precision::kBf16;
        if (mode == Recompute::kSelective) job.document_end = 3;
        ExpectAsPredicted(job);
      }
    }
  }
}

TEST(MetaRun, AllocatesTokensOnEveryRankWhereDocumentsAreApart) {
  for (const model::ModelConfig& model : {Gpt2(), Llama(false)}) {
    for (const std::string schedule : {"1f1b", "zb-v", "dualpipe", "pipedream-2bw"}) {
      SCOPED_TRACE(absl::StrCat(schedule, " family ", static_cast<int>(model.family)));
      config::JobSpec job = JobOf(model, schedule);
      job.document_end = 3;
      job.validation = config::Validation{.path = "v", .every_steps = 1};
      ExpectAsPredicted(job);
    }
  }
}

TEST(MetaRun, AllocatesWhatIsPredictedOfLastUpdates) {
  for (const bool muon : {false, true}) {
    config::JobSpec job = JobOf(Gpt2(), "pipedream-2bw");
    if (muon) job.muon = config::Muon{.clip_norm = 0};
    ExpectAsPredicted(job);
    const std::int64_t weights =
        plan::MakePlan(job, {.max_workers = 8})->memory[0][MemoryKind::kWeights];
    const std::int64_t moments =
        plan::MakePlan(job, {.max_workers = 8})->memory[0][MemoryKind::kOptimizer];
    job.error_feedback = 1;
    ExpectAsPredicted(job);
    const std::int64_t all =
        plan::MakePlan(job, {.max_workers = 8})->memory[0][MemoryKind::kOptimizer];
    EXPECT_EQ(all, moments + weights / 2) << "there are two versions of the weights";
  }
}

TEST(MetaRun, AllocatesWhatIsPredictedOfOptimizersWithFewerMoments) {
  std::vector<std::int64_t> bytes;
  for (const int moments : {2, 1, 0}) {
    for (const std::string schedule : {"1f1b", "dualpipe", "pipedream-2bw"}) {
      SCOPED_TRACE(absl::StrCat(schedule, " moments ", moments));
      config::JobSpec job = JobOf(Gpt2(), schedule);
      if (moments == 1) job.lion = config::Lion{.clip_norm = 0};
      if (moments == 0) job.sgd = config::Sgd{.momentum = 0, .clip_norm = 0};
      ExpectAsPredicted(job);
      const absl::StatusOr<plan::Plan> plan = plan::MakePlan(job, {.max_workers = 8});
      ASSERT_TRUE(plan.ok()) << plan.status();
      if (schedule == "1f1b") bytes.push_back(plan->memory[0][MemoryKind::kOptimizer]);
    }
  }
  EXPECT_EQ(bytes[0], 2 * bytes[1]);
  EXPECT_EQ(bytes[2], 0);
}

TEST(MetaRun, AllocatesWhatIsPredictedWhereStepsOverlap) {
  for (const char* schedule : {"1f1b", "zb-h2", "zb-v"}) {
    for (const model::Precision precision : {model::Precision::kF32, model::Precision::kBf16}) {
      SCOPED_TRACE(schedule);
      config::JobSpec job = JobOf(Llama(/*tied=*/true), schedule);
      job.barrier = config::Barrier::kNever;
      job.precision = precision;
      job.validation = config::Validation{.path = "v", .every_steps = 1};
      ExpectAsPredicted(job);
      const plan::Plan overlapped = *plan::MakePlan(job, {.max_workers = 8});
      job.barrier = config::Barrier::kAlways;
      const plan::Plan with_barrier = *plan::MakePlan(job, {.max_workers = 8});
      EXPECT_TRUE(OverlapsSteps(overlapped));
      EXPECT_FALSE(OverlapsSteps(with_barrier));
      for (std::size_t rank = 0; rank < 2; ++rank) {
        EXPECT_EQ(overlapped.memory[rank][MemoryKind::kWeights],
                  2 * with_barrier.memory[rank][MemoryKind::kWeights]);
        EXPECT_EQ(overlapped.memory[rank][MemoryKind::kStash],
                  with_barrier.memory[rank][MemoryKind::kStash]);
      }
    }
  }
}

TEST(MetaRun, AllocatesWhatIsPredictedOfSeveralLeaves) {
  for (const model::ModelConfig& model : {Gpt2(), Llama(true), Mixtral()}) {
    for (const std::string schedule : {"1f1b", "zb-v"}) {
      for (const int replicas : {1, 2}) {
        SCOPED_TRACE(
            absl::StrCat(schedule, " family ", static_cast<int>(model.family), " on ", replicas));
        config::JobSpec job = JobOf(model, schedule);
        job.parallelism.data = replicas;
        job.parallelism.data_leaves = 4;
        job.validation = config::Validation{.path = "v", .every_steps = 1};
        ExpectAsPredicted(job);
      }
    }
  }
}

TEST(MetaRun, AllocatesWhatIsPredictedOfMuon) {
  for (const model::ModelConfig& model : {Gpt2(), Llama(true), Mixtral()}) {
    for (const std::string schedule : {"1f1b", "dualpipe", "pipedream-2bw"}) {
      SCOPED_TRACE(absl::StrCat(schedule, " family ", static_cast<int>(model.family)));
      config::JobSpec job = JobOf(model, schedule);
      const absl::StatusOr<plan::Plan> adamw = plan::MakePlan(job, {.max_workers = 8});
      ASSERT_TRUE(adamw.ok()) << adamw.status();
      job.muon = config::Muon{.clip_norm = 0};
      ExpectAsPredicted(job);
      const absl::StatusOr<plan::Plan> plan = plan::MakePlan(job, {.max_workers = 8});
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_LT(plan->memory[0][MemoryKind::kOptimizer], adamw->memory[0][MemoryKind::kOptimizer]);
    }
  }
}

// A plan predicts the largest shards, and this is of the first replica's.
TEST(MetaRun, AllocatesWhatIsLaidOutWhereWeightsAreFreed) {
  for (const model::Precision precision : {model::Precision::kF32, model::Precision::kBf16}) {
    config::JobSpec job = JobOf(Llama(false), "interleaved-1f1b");
    job.parallelism.chunks = 3;
    job.parallelism.data = 2;
    job.parallelism.shard = config::Shard::kParameters;
    job.parallelism.reshard = config::Reshard::kAlways;
    job.precision = precision;
    job.validation = config::Validation{.path = "v", .every_steps = 1};
    const absl::StatusOr<plan::Plan> plan = plan::MakePlan(job, {.max_workers = 8});
    ASSERT_TRUE(plan.ok()) << plan.status();
    ASSERT_TRUE(FreesWeights(*plan));
    for (int rank = 0; rank < plan->mesh.pp_size; ++rank) {
      const absl::StatusOr<MetaReport> report = testing::RunRank(job, *plan, rank);
      ASSERT_TRUE(report.ok()) << report.status();
      MemoryBytes expected = layout::LayOutRank({.model = plan->model,
                                                 .partition = plan->partition,
                                                 .program = plan->programs[rank],
                                                 .validation = &plan->validation_programs[rank],
                                                 .num_replicas = 2,
                                                 .replica = 0})
                                 .bytes();
      expected[MemoryKind::kProcess] = 0;
      EXPECT_EQ(report->counts.bytes, expected);
      EXPECT_LE(expected[MemoryKind::kWeights], plan->memory[rank][MemoryKind::kWeights]);
    }
  }
}

TEST(MetaRun, AllocatesWhatIsPredictedOfBf16OnGpus) {
  std::vector<model::ModelConfig> models = {Gpt2(),    Llama(false), Llama(true), Qwen3(),
                                            Mistral(), Mixtral(),    Qwen3Moe()};
  for (const model::ModelConfig& model : {Gpt2(), Llama(false), Llama(true), Qwen3(), Mixtral()})
    models.push_back(testing::WithWholeVectors(model));
  for (const model::ModelConfig& model : models) {
    for (const std::string schedule : {"1f1b", "zb-h1", "dualpipe"}) {
      for (const Recompute mode : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
        SCOPED_TRACE(absl::StrCat(schedule, " family ", static_cast<int>(model.family), " hidden ",
                                  model.hidden, " recompute ", std::string(Name(mode))));
        config::JobSpec job = JobOf(model, schedule);
        job.parallelism.recompute = {mode};
        job.precision = model::Precision::kBf16;
        if (mode == Recompute::kNone) {
          job.validation = config::Validation{.path = "v", .every_steps = 1};
        }
        ExpectAsPredicted(job, config::DeviceKind::kCuda);
      }
    }
  }
}

// A microbatch has two slices of 1,088 and 1,056 rows.
TEST(MetaRun, AllocatesAndComputesWhatIsPredictedOfAHeadInSlices) {
  for (model::ModelConfig model : {Gpt2(), testing::WithWholeVectors(Llama(false))}) {
    model.context = model.positions = 1072;
    model.vocab = 32 * model::kVocabularyBlock - 70;
    for (const Recompute mode : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      for (const std::string schedule : {"1f1b", "gpipe", "zb-h1"}) {
        SCOPED_TRACE(absl::StrCat(schedule, " family ", static_cast<int>(model.family),
                                  " recompute ", std::string(Name(mode))));
        config::JobSpec job = JobOf(model, schedule);
        job.global_batch = 8;
        job.parallelism.vocabulary = config::Vocabulary::kLast;
        job.parallelism.recompute = {mode};
        job.validation = config::Validation{.path = "v", .every_steps = 1};
        const int slicing_rank = schedule == "1f1b" ? 1 : -1;
        ExpectAsPredicted(job, config::DeviceKind::kCuda, slicing_rank);
        job.precision = model::Precision::kBf16;
        ExpectAsPredicted(job, config::DeviceKind::kCuda, slicing_rank);
        ExpectAsPredicted(job);
      }
    }
  }
}

// Tests sizes that are whole cache lines, where the slots of a stage share memory, and sizes that
// are not.
TEST(MetaRun, AllocatesWhatIsPredictedWhereWeightGradsAreMerged) {
  model::ModelConfig whole_lines = Gpt2();
  whole_lines.context = 16;
  whole_lines.hidden = 48;
  model::ModelConfig huge_pages = whole_lines;  // so large that allocations are rounded up to them
  huge_pages.context = huge_pages.positions = 1008;
  for (const model::ModelConfig& model :
       {whole_lines, Gpt2(), Llama(false), Qwen3(), Mixtral(), huge_pages}) {
    for (const Recompute mode : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      config::JobSpec job = JobOf(model, "zb-h2");
      job.exact = false;
      job.parallelism.pipeline = 4;
      job.parallelism.recompute = {mode};
      ExpectAsPredicted(job);
    }
  }
}

TEST(MetaRun, AllocatesWhatIsPredictedForEachStageAlone) {
  config::JobSpec job = JobOf(Gpt2(), "zb-h1");
  job.parallelism.recompute = {Recompute::kFull, Recompute::kNone};
  ExpectAsPredicted(job);
}

TEST(MetaRun, AllocatesAndComputesWhatIsPredictedOfSeveralBlocksOfWords) {
  for (model::ModelConfig model : {Gpt2(), Llama(false)}) {
    model.vocab = 2 * model::kVocabularyBlock + 70;
    for (const Recompute mode : {Recompute::kNone, Recompute::kSelective}) {
      config::JobSpec job = JobOf(model, "zb-h1");
      job.parallelism.vocabulary = config::Vocabulary::kLast;
      job.parallelism.recompute = {mode};
      job.validation = config::Validation{.path = "v", .every_steps = 1};
      ExpectAsPredicted(job);
      job.precision = model::Precision::kBf16;
      ExpectAsPredicted(job);
      ExpectAsPredicted(job, config::DeviceKind::kCuda);
    }
    config::JobSpec merged = JobOf(model, "zb-h2");
    merged.parallelism.vocabulary = config::Vocabulary::kLast;
    merged.exact = false;
    merged.parallelism.pipeline = 4;
    ExpectAsPredicted(merged);
    merged.parallelism.vocabulary = config::Vocabulary::kSpread;
    ExpectAsPredicted(merged);
  }
}

TEST(MetaRun, AllocatesAndComputesWhatIsPredictedOfASpreadVocabulary) {
  for (model::ModelConfig model : {Gpt2(), Llama(false), Llama(true)}) {
    model.vocab = 2 * model::kVocabularyBlock + 70;
    for (const std::string schedule : {"1f1b", "zb-v"}) {
      for (const Recompute mode : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
        SCOPED_TRACE(absl::StrCat(schedule, " family ", static_cast<int>(model.family),
                                  " recompute ", std::string(Name(mode))));
        config::JobSpec job = JobOf(model, schedule);
        job.parallelism.vocabulary = config::Vocabulary::kSpread;
        job.parallelism.recompute = {mode};
        job.parallelism.data = mode == Recompute::kSelective ? 2 : 1;
        job.precision = mode == Recompute::kNone ? model::Precision::kF32 : model::Precision::kBf16;
        if (mode == Recompute::kFull) {
          job.validation = config::Validation{.path = "v", .every_steps = 1};
        }
        ExpectAsPredicted(job);
      }
    }
  }
}

// A model of 70e9 parameters on 16 stages, a terabyte in total.
TEST(MetaRun, RunsWhatIsTooLargeForAnyMachine) {
  config::JobSpec job = JobOf({.family = model::Family::kLlama,
                               .layers = 80,
                               .hidden = 8192,
                               .heads = 64,
                               .kv_heads = 8,
                               .head_size = 128,
                               .inner = 28672,
                               .context = 4096,
                               .positions = 4096,
                               .vocab = 128256,
                               .tied_head = false},
                              "zb-h1");
  job.parallelism.pipeline = 16;
  job.parallelism.recompute = {Recompute::kFull};
  ExpectAsPredicted(job);
}

}  // namespace
}  // namespace takt::train
