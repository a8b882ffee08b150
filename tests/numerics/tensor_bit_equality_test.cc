// SPDX-License-Identifier: Apache-2.0
// Tests that the number of ranks that split layers changes no bit, as long as the number of leaves
// is the same.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/model/vocabulary.h"
#include "gmock/gmock.h"
#include "tests/numerics/bit_equality.h"

namespace takt::numerics {
namespace {

using ::testing::HasSubstr;

class TensorBitEquality : public BitEquality {
 protected:
  // A rank's rows and those of a leaf end within sequences.
  config::JobSpec SplitJob() const {
    config::JobSpec job = Job();
    job.model = {.layers = 4,
                 .hidden = 40,
                 .heads = 4,
                 .kv_heads = 4,
                 .inner = 52,
                 .context = 20,
                 .positions = 24,
                 .vocab = 131};
    job.microbatch = 3;
    job.steps = 3;
    job.parallelism = {.pipeline = 1, .data = 1, .threads = 1, .schedule = "1f1b"};
    return job;
  }

  static model::ModelConfig OfFamily(model::ModelConfig config, model::Family family,
                                     int kv_heads) {
    config.family = family;
    config.kv_heads = kv_heads;
    config.head_size = 10;
    config.tied_head = family == model::Family::kQwen2;
    if (family == model::Family::kMistral) config.attention_window = 7;
    return config;
  }

  static RunResult TrainSplit(const config::JobSpec& job, int size, int leaves) {
    return Trained({.job = job, .tensor = {.size = size, .leaves = leaves}});
  }

  // Trains with 1, 2 and 4 ranks and 4 leaves, and compares with layers that are not split.
  static void ExpectSameBitsOverRanks(const config::JobSpec& job) {
    const RunResult one = TrainSplit(job, 1, 4);
    for (const int size : {2, 4}) {
      SCOPED_TRACE("tensor " + std::to_string(size));
      ExpectSameBits(one, TrainSplit(job, size, 4));
    }
    const RunResult whole = Train(job);
    ASSERT_EQ(whole.steps.size(), one.steps.size());
    const double allowed = job.precision == config::Precision::kBf16 ? 1e-2 : 1e-4;
    for (std::size_t i = 0; i < whole.steps.size(); ++i) {
      EXPECT_NEAR(one.steps[i].loss / whole.steps[i].loss, 1, allowed) << "step " << i + 1;
      EXPECT_NEAR(one.steps[i].grad_norm / whole.steps[i].grad_norm, 1, 10 * allowed)
          << "step " << i + 1;
    }
  }
};

TEST_F(TensorBitEquality, OverRanksOfGpt2) { ExpectSameBitsOverRanks(SplitJob()); }

TEST_F(TensorBitEquality, OverRanksOfLlamaAndItsRelatives) {
  using enum model::Family;
  for (const model::Family family : {kLlama, kQwen2, kQwen3, kMistral}) {
    for (const int kv_heads : {1, 2, 4}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(family)) + " with kv heads " +
                   std::to_string(kv_heads));
      config::JobSpec job = SplitJob();
      job.model = OfFamily(job.model, family, kv_heads);
      job.steps = 2;
      ExpectSameBitsOverRanks(job);
    }
  }
}

TEST_F(TensorBitEquality, OverRanksWithSeveralBlocksOfWords) {
  for (const bool tied : {true, false}) {
    for (const int pipeline : {1, 2}) {
      SCOPED_TRACE(std::string(tied ? "tied" : "untied") + " pp " + std::to_string(pipeline));
      config::JobSpec job = SplitJob();
      if (!tied) job.model = OfFamily(job.model, model::Family::kLlama, 2);
      job.model.vocab = 6 * static_cast<int>(model::kVocabularyBlock) + 70;
      job.parallelism.pipeline = pipeline;
      job.parallelism.vocabulary = config::Vocabulary::kLast;
      job.steps = 2;
      ExpectSameBitsOverRanks(job);
    }
  }
}

TEST_F(TensorBitEquality, OverRanksInBf16) {
  for (const bool gpt2 : {true, false}) {
    SCOPED_TRACE(gpt2);
    config::JobSpec job = SplitJob();
    if (!gpt2) job.model = OfFamily(job.model, model::Family::kQwen3, 2);
    job.precision = config::Precision::kBf16;
    ExpectSameBitsOverRanks(job);
  }
}

// Each number of the stream is a document, which ends with a blank.
TEST_F(TensorBitEquality, OverRanksWhereDocumentsShareRows) {
  for (const model::Family family : {model::Family::kGpt2, model::Family::kQwen3}) {
    SCOPED_TRACE(static_cast<int>(family));
    config::JobSpec job = SplitJob();
    if (family != model::Family::kGpt2) job.model = OfFamily(job.model, family, 2);
    job.documents = config::Documents::kSeparate;
    job.document_end = ' ';
    job.parallelism.recompute = {model::Recompute::kSelective};
    ExpectSameBitsOverRanks(job);
  }
}

TEST_F(TensorBitEquality, OverRanksWithReplicas) {
  config::JobSpec job = SplitJob();
  job.model = OfFamily(job.model, model::Family::kQwen2, 2);
  job.parallelism.pipeline = 2;
  job.parallelism.data = 2;
  ExpectSameBitsOverRanks(job);
}

TEST_F(TensorBitEquality, OverEightRanks) {
  config::JobSpec job = SplitJob();
  job.model = OfFamily(job.model, model::Family::kLlama, 2);
  job.model.heads = 8;
  job.model.inner = 56;
  job.microbatch = 2;
  job.steps = 2;
  const RunResult one = TrainSplit(job, 1, 8);
  for (const int size : {2, 4, 8}) ExpectSameBits(one, TrainSplit(job, size, 8));
}

TEST_F(TensorBitEquality, OverSchedulesAndPartitions) {
  config::JobSpec job = SplitJob();
  job.model = OfFamily(job.model, model::Family::kLlama, 2);
  job.model.layers = 6;
  job.microbatch = 1;
  job.steps = 2;
  const RunResult one = TrainSplit(job, 2, 2);
  for (const schedule::Family& family : OneWayFamilies()) {
    SCOPED_TRACE(std::string(family.name));
    job.parallelism.schedule = family.name;
    job.parallelism.pipeline = 2;
    job.parallelism.chunks = std::nullopt;
    ExpectSameBits(one, TrainSplit(job, 2, 2));
  }
}

TEST_F(TensorBitEquality, OverModesOfRecompute) {
  using enum model::Recompute;
  for (const model::Family family : {model::Family::kGpt2, model::Family::kQwen3}) {
    config::JobSpec job = SplitJob();
    if (family != model::Family::kGpt2) job.model = OfFamily(job.model, family, 2);
    job.steps = 2;
    job.parallelism.recompute = {kNone};
    const RunResult none = TrainSplit(job, 2, 4);
    for (const model::Recompute mode : {kSelective, kFull}) {
      for (const std::string_view schedule : {"1f1b", "zb-h1"}) {
        SCOPED_TRACE(std::string(model::Name(mode)) + " " + std::string(schedule));
        job.parallelism.recompute = {mode};
        job.parallelism.schedule = std::string(schedule);
        job.parallelism.pipeline = 2;
        ExpectSameBits(none, TrainSplit(job, 2, 4));
      }
    }
  }
}

// Sums over the rows of several microbatches differ in rounding.
TEST_F(TensorBitEquality, IsLeftForRoundingAloneWhereAJobNeedNotBeExact) {
  config::JobSpec job = SplitJob();
  job.model.hidden = 32;
  job.model.inner = 64;
  job.model.context = 16;
  job.microbatch = 1;
  job.steps = 4;
  job.parallelism.pipeline = 2;
  job.parallelism.schedule = "zb-h1";
  const RunResult exact = TrainSplit(job, 2, 4);
  job.exact = false;
  const RunResult merged = TrainSplit(job, 2, 4);
  ASSERT_EQ(merged.steps.size(), exact.steps.size());
  for (std::size_t i = 0; i < exact.steps.size(); ++i)
    EXPECT_NEAR(merged.steps[i].loss, exact.steps[i].loss, 1e-5) << "step " << i + 1;
}

TEST_F(TensorBitEquality, OverThreadsAndRuns) {
  config::JobSpec job = SplitJob();
  const RunResult one = TrainSplit(job, 2, 2);
  ExpectSameBits(one, TrainSplit(job, 2, 2));
  job.parallelism.threads = 3;
  ExpectSameBits(one, TrainSplit(job, 2, 2));
}

// Each of three meshes resumes from what each of them left.
TEST_F(TensorBitEquality, OverPairsOfMeshesThatOneJobHasAfterTheOther) {
  config::JobSpec job = SplitJob();
  job.model = OfFamily(job.model, model::Family::kQwen2, 2);
  job.steps = 4;
  struct Mesh {
    int tensor, pipeline;
  };
  constexpr Mesh kMeshes[] = {{1, 2}, {2, 1}, {4, 2}};
  const RunResult undisturbed = TrainSplit(job, 1, 4);
  for (const Mesh& before : kMeshes) {
    config::JobSpec half = job;
    half.steps = 2;
    half.parallelism.pipeline = before.pipeline;
    const RunResult left = TrainSplit(half, before.tensor, 4);
    for (const Mesh& after : kMeshes) {
      SCOPED_TRACE(std::to_string(before.tensor) + " then " + std::to_string(after.tensor));
      job.parallelism.pipeline = after.pipeline;
      RunResult right =
          Trained({.job = job, .tensor = {.size = after.tensor, .leaves = 4}, .resume = &left});
      right.steps.insert(right.steps.begin(), left.steps.begin(), left.steps.end());
      ExpectSameBits(undisturbed, right);
    }
  }
}

// GPUs keep what lies between products in bf16. The sums over leaves stay in f32.
TEST_F(TensorBitEquality, OverRanksWithActivationsInBf16) {
  using enum model::Family;
  for (const model::Family family : {kGpt2, kQwen2, kQwen3}) {
    SCOPED_TRACE(static_cast<int>(family));
    config::JobSpec job = SplitJob();
    if (family != kGpt2) job.model = OfFamily(job.model, family, 2);
    job.model.hidden = job.model.inner = 64;
    job.model.head_size = 16;
    job.model.vocab = 2 * static_cast<int>(model::kVocabularyBlock) + 70;
    job.precision = config::Precision::kBf16;
    job.parallelism.pipeline = 2;
    job.parallelism.vocabulary = config::Vocabulary::kLast;
    job.steps = 2;
    const auto train = [&](int size) {
      return Trained({.job = job,
                      .tensor = {.size = size, .leaves = 4},
                      .planned_for = config::DeviceKind::kCuda});
    };
    const RunResult one = train(1);
    for (const int size : {2, 4}) {
      SCOPED_TRACE("tensor " + std::to_string(size));
      ExpectSameBits(one, train(size));
    }
    const RunResult in_f32 = TrainSplit(job, 1, 4);
    ASSERT_EQ(in_f32.steps.size(), one.steps.size());
    EXPECT_NE(in_f32.steps.back().loss, one.steps.back().loss);
    for (std::size_t i = 0; i < one.steps.size(); ++i) {
      EXPECT_NEAR(one.steps[i].loss / in_f32.steps[i].loss, 1, 1e-2) << "step " << i + 1;
      EXPECT_NEAR(one.steps[i].grad_norm / in_f32.steps[i].grad_norm, 1, 1e-1) << "step " << i + 1;
    }
    ExpectSameBits(one, Trained({.job = job,
                                 .tensor = {.size = 2, .leaves = 4},
                                 .planned_for = config::DeviceKind::kCuda,
                                 .make_backends = [](int threads) {
                                   return backend::CreateDiscreteBackends(
                                       {.threads = threads, .prepared_only = true});
                                 }}));
  }
}

// The ranks meet in memory of their devices. Documents share rows, keys and values have fewer heads
// than there are ranks, and gradients of these and of norms are added up over ranks.
TEST_F(TensorBitEquality, OverDevices) {
  struct Case {
    model::Family family = model::Family::kGpt2;
    int kv_heads = 4;
    config::Precision precision = config::Precision::kF32;
    bool documents = false;
    std::string schedule = "1f1b";
    int pipeline = 1;
    model::Recompute recompute = model::Recompute::kNone;
  };
  using enum model::Family;
  using enum model::Recompute;
  for (const Case& each :
       {Case{}, Case{.documents = true, .recompute = kSelective},
        Case{.family = kLlama, .kv_heads = 1, .schedule = "zb-h1", .pipeline = 2},
        Case{.family = kQwen3,
        .kv_heads = 2,
        .precision = config::Precision::kBf16,
        .documents = true},
        Case{.family = kQwen2,
        .kv_heads = 2,
        .schedule = "zb-v",
        .pipeline = 2,
        .recompute = kFull}}) {
    SCOPED_TRACE(each.schedule + " " + std::to_string(static_cast<int>(each.family)));
    config::JobSpec job = SplitJob();
    if (each.family != kGpt2) job.model = OfFamily(job.model, each.family, each.kv_heads);
    job.model.vocab = 2 * static_cast<int>(model::kVocabularyBlock) + 70;
    job.precision = each.precision;
    if (each.documents) {
      job.documents = config::Documents::kSeparate;
      job.document_end = ' ';
    }
    job.parallelism.pipeline = each.pipeline;
    job.parallelism.schedule = each.schedule;
    job.parallelism.vocabulary = config::Vocabulary::kLast;
    job.parallelism.recompute = {each.recompute};
    // The plan that the ranks share is that of whole layers, whose embedding keeps nothing.
    if (each.schedule == "zb-v") job.parallelism.stage_layers = {1, 1, 1, 1};
    job.steps = 2;
    for (const model::TensorShare& share :
         {model::TensorShare{.size = 1, .leaves = 4}, model::TensorShare{.size = 2, .leaves = 4},
          model::TensorShare{.size = 4, .leaves = 4}}) {
      SCOPED_TRACE(share.size);
      const RunResult on_cpu = Trained({.job = job, .tensor = share});
      for (const bool lazy : {false, true}) {
        const RunResult on_devices =
            Trained({.job = job, .tensor = share, .make_backends = [lazy](int threads) {
                       return backend::CreateDiscreteBackends(
                           {.threads = threads, .lazy = lazy, .prepared_only = true});
                     }});
        ExpectSameBits(on_cpu, on_devices);
      }
    }
  }
}

// Replicas of each tensor rank share the optimizer's state.
TEST_F(TensorBitEquality, OverRanksWithAScheduleFromAFile) {
  config::JobSpec job = SplitJob();
  job.parallelism.pipeline = 2;
  job.parallelism.schedule = "zb-h1";
  ExpectSameBits(TrainSplit(job, 1, 2), TrainSplit(FromFile(job), 2, 2));
}

TEST_F(TensorBitEquality, OverRanksWithGradientsThatAreNotFinite) {
  config::JobSpec job = WithOverflow(SplitJob());
  job.parallelism.pipeline = 2;
  ExpectSameUntilNotFinite(TrainSplit(job, 1, 2), TrainSplit(job, 2, 2));
}

TEST_F(TensorBitEquality, OverShardsOfTheOptimizer) {
  using enum config::Precision;
  // In bf16 ranks have shards of their parts of matrices, too.
  for (const auto& [family, precision] : {std::pair(model::Family::kGpt2, kF32),
                                          {model::Family::kLlama, kF32},
                                          {model::Family::kLlama, kBf16}}) {
    SCOPED_TRACE(absl::StrCat(static_cast<int>(family), precision == kBf16 ? " bf16" : ""));
    config::JobSpec job = SplitJob();
    job.precision = precision;
    if (family != model::Family::kGpt2) job.model = OfFamily(job.model, family, 2);
    job.model.vocab = 2 * static_cast<int>(model::kVocabularyBlock) + 70;
    job.parallelism = {.pipeline = 2,
                       .data = 2,
                       .threads = 1,
                       .schedule = "1f1b",
                       .vocabulary = config::Vocabulary::kLast};
    job.steps = 2;
    RunResult whole = TrainSplit(job, 4, 4);
    whole.gradients.clear();
    job.parallelism.shard = config::Shard::kOptimizer;
    ExpectSameBits(whole, TrainSplit(job, 4, 4));
    ExpectSameBits(
        whole,
        Trained({.job = job, .tensor = {.size = 4, .leaves = 4}, .make_backends = [](int threads) {
                   return backend::CreateDiscreteBackends(
                       {.threads = threads, .prepared_only = true});
                 }}));
  }
}

TEST_F(TensorBitEquality, RefusesWhatCannotBeSplit) {
  const auto error = [](const RunOptions& options) {
    return std::string(TrainInProcess(options).status().message());
  };
  config::JobSpec job = SplitJob();
  EXPECT_THAT(error({.job = job, .tensor = {.size = 8, .leaves = 8}}), HasSubstr("model.heads"));
  config::JobSpec delayed = job;
  delayed.parallelism.pipeline = 2;
  delayed.parallelism.schedule = "pipedream-2bw";
  delayed.adamw.clip_norm = 0;
  EXPECT_THAT(error({.job = delayed, .tensor = {.size = 2, .leaves = 2}}), HasSubstr("flush"));
  config::JobSpec copies = job;
  copies.parallelism.pipeline = 2;
  copies.parallelism.schedule = "dualpipe";
  copies.microbatch = 1;
  EXPECT_THAT(error({.job = copies, .tensor = {.size = 2, .leaves = 2}}), HasSubstr("two copies"));
  config::JobSpec shards = job;
  shards.parallelism.data = 2;
  shards.parallelism.shard = config::Shard::kOptimizer;
  EXPECT_THAT(error({.job = shards, .tensor = {.size = 2, .leaves = 4}}), HasSubstr("each leaf"));
}

}  // namespace
}  // namespace takt::numerics
