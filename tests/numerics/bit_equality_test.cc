// SPDX-License-Identifier: Apache-2.0
// Tests that loss and gradient norm have the same bits for every schedule, number of stages and
// chunks, partition and number of threads.
#include "tests/numerics/bit_equality.h"

#include "common/model/vocabulary.h"
#include "common/schedule/text.h"

namespace takt::numerics {
namespace {

TEST_F(BitEquality, OverFamiliesStagesAndChunks) {
  const RunResult reference = Train(Job());
  ASSERT_EQ(reference.steps.size(), 4U);
  EXPECT_LT(reference.steps[3].loss, reference.steps[0].loss);
  for (const schedule::Family& family : OneWayFamilies()) {
    for (const int pp : {1, 2, 3, 4}) {
      SCOPED_TRACE(std::string(family.name) + " pp " + std::to_string(pp));
      ExpectSameBits(reference, Train(JobWith(family, pp)));
    }
  }
}

TEST_F(BitEquality, OfOtherOptimizersAndGroups) {
  for (const int optimizer : {0, 1, 2, 3, 4}) {
    SCOPED_TRACE(optimizer);
    const auto choose = [optimizer](config::JobSpec job) {
      job.loss = {.label_smoothing = 0.1, .z_loss = 1e-4};
      job.groups = {{.parameters = "*.bias", .learning_rate_scale = 0.5, .weight_decay = 0.1},
                    {.parameters = "transformer.h.3.*", .learning_rate_scale = 2}};
      if (optimizer == 1) job.lion = config::Lion{.learning_rate = 1e-3};
      if (optimizer == 2) job.sgd = config::Sgd{.learning_rate = 0.1, .nesterov = true};
      if (optimizer == 3) job.sgd = config::Sgd{.learning_rate = 0.5, .momentum = 0};
      if (optimizer == 4) job.muon = config::Muon{.learning_rate = 3e-3};
      return job;
    };
    const RunResult reference = Train(choose(Job()));
    EXPECT_LT(reference.steps[3].loss, reference.steps[0].loss);
    for (const char* family : {"1f1b", "zb-v"}) {
      config::JobSpec job = choose(Job());
      job.parallelism.pipeline = 3;
      job.parallelism.schedule = family;
      job.parallelism.chunks = std::nullopt;
      job.parallelism.threads = 2;
      ExpectSameBits(reference, Train(job));
    }
    ExpectSameBits(reference, TrainOnDevice(choose(Job()), /*lazy=*/true));
  }
}

TEST_F(BitEquality, OfMuonOverReplicasAndTwoCopies) {
  config::JobSpec job = Job();
  job.muon = config::Muon{.learning_rate = 3e-3};
  job.global_batch = 24;
  job.steps = 2;
  job.parallelism.data = 2;
  const RunResult reference = Train(job);
  job.parallelism = {.pipeline = 2, .data = 2, .threads = 2, .schedule = "zb-h1"};
  ExpectSameBits(reference, Train(job));
  job.parallelism = {.pipeline = 2, .data = 1, .threads = 1, .schedule = "dualpipe"};
  ExpectSameBits(reference, Train(job));
}

// Rows of tables are AdamW's, so ranks may have some of them alone.
TEST_F(BitEquality, OfMuonWithASpreadVocabulary) {
  config::JobSpec job = Job();
  job.muon = config::Muon{.learning_rate = 3e-3};
  job.model.vocab = 2 * model::kVocabularyBlock + 70;
  job.steps = 2;
  const RunResult reference = Train(job);
  job.parallelism = {.pipeline = 3,
                     .data = 1,
                     .threads = 2,
                     .schedule = "1f1b",
                     .vocabulary = config::Vocabulary::kSpread};
  ExpectSameBits(reference, Train(job));
}

TEST_F(BitEquality, OfReplicasOverFamilies) {
  config::JobSpec job = Job();
  job.parallelism.data = 2;
  const RunResult reference = Train(job);
  for (const schedule::Family& family : OneWayFamilies()) {
    SCOPED_TRACE(std::string(family.name));
    job = JobWith(family, 2);
    job.parallelism.data = 2;
    ExpectSameBits(reference, Train(job));
  }
}

// Two copies of the weights sum as two replicas with half the microbatches each would.
TEST_F(BitEquality, OfTwoCopiesAndTwiceAsManyReplicas) {
  constexpr int kBatch = 24;  // at least twice the ranks, and a multiple of them, for each replica
  int families = 0;
  for (const int dp : {1, 2}) {
    config::JobSpec job = Job();
    job.global_batch = kBatch;
    job.parallelism.data = 2 * dp;
    const RunResult reference = Train(job);
    for (const schedule::Family& family : schedule::Families()) {
      if (family.placement != schedule::Placement::kBidirectional) continue;
      ++families;
      for (const int pp : {2, 4}) {
        SCOPED_TRACE(std::string(family.name) + " pp " + std::to_string(pp) + " dp " +
                     std::to_string(dp));
        job = JobWith(family, pp);
        job.global_batch = kBatch;
        job.parallelism.data = dp;
        ExpectSameBits(reference, Train(job));
      }
    }
  }
  EXPECT_GE(families, 4);
}

// Values that are computed again have the bits they had, whether W follows its I or waits.
TEST_F(BitEquality, OverWhatIsRecomputed) {
  using enum model::Recompute;
  for (const bool llama : {false, true}) {
    config::JobSpec job = Job();
    job.model.layers = 4;
    if (llama) job.model = Llama(job.model);
    job.steps = 2;
    const RunResult reference = Train(job);
    for (const schedule::Family& family : OneWayFamilies()) {
      for (const std::vector<model::Recompute>& modes :
           {std::vector{kSelective}, {kFull}, {kFull, kNone}, {kSelective, kFull}}) {
        SCOPED_TRACE(std::string(family.name) + (llama ? " llama " : " gpt2 ") +
                     std::to_string(static_cast<int>(modes.front())) + "+");
        config::JobSpec recomputing = job;
        recomputing.parallelism = JobWith(family, 2).parallelism;
        const int num_stages = 2 * family.num_chunks;
        for (int s = 0; s < num_stages; ++s) {
          recomputing.parallelism.recompute.push_back(modes[s % modes.size()]);
        }
        ExpectSameBits(reference, Train(recomputing));
      }
    }
  }
}

TEST_F(BitEquality, OfHeadNormsAndWindows) {
  for (model::ModelConfig (*const family)(model::ModelConfig) : {&Qwen3, &Mistral}) {
    config::JobSpec job = Job();
    job.model.layers = 4;
    job.model = family(job.model);
    job.steps = 2;
    for (const config::Precision precision : {config::Precision::kF32, config::Precision::kBf16}) {
      job.precision = precision;
      ExpectSameBitsOverRecompute(job, {"1f1b", "zb-h1", "zb-v"});
    }
  }
}

TEST_F(BitEquality, OfHeadNormsAndWindowsOverPartitionsReplicasAndFamilies) {
  for (model::ModelConfig (*const family)(model::ModelConfig) : {&Qwen3, &Mistral}) {
    config::JobSpec job = Job();
    job.model.layers = 6;
    job.model = family(job.model);
    job.steps = 2;
    const RunResult reference = Train(job);
    for (const schedule::Family& way : OneWayFamilies()) {
      SCOPED_TRACE(std::string(way.name));
      config::JobSpec cut = job;
      cut.parallelism = JobWith(way, way.num_chunks > 1 ? 2 : 3).parallelism;
      ExpectSameBits(reference, Train(cut));
    }
    for (const std::string_view schedule : {"1f1b", "zb-h1"}) {
      config::JobSpec replicas = job;
      replicas.parallelism = {.pipeline = 2, .data = 2, .threads = 2};
      replicas.parallelism.schedule = schedule;
      SCOPED_TRACE("replicas " + std::string(schedule));
      config::JobSpec alone = replicas;
      alone.parallelism.pipeline = 1;
      ExpectSameBits(Train(alone), Train(replicas));
    }
    config::JobSpec copies = job;
    copies.parallelism = {.pipeline = 2, .data = 1, .threads = 1, .schedule = "dualpipe"};
    config::JobSpec replicas = job;
    replicas.parallelism = {.pipeline = 1, .data = 2, .threads = 1, .schedule = "1f1b"};
    ExpectSameBits(Train(replicas), Train(copies));
  }
}

TEST_F(BitEquality, OfTwoCopiesOverWhatIsRecomputed) {
  config::JobSpec job = Job();
  job.steps = 2;
  job.global_batch = 24;
  for (const std::string_view schedule : {"dualpipe", "chimera"}) {
    job.parallelism.pipeline = 4;
    job.parallelism.schedule = schedule;
    job.parallelism.recompute = {};
    const RunResult reference = Train(job);
    for (const model::Recompute mode : {model::Recompute::kSelective, model::Recompute::kFull}) {
      SCOPED_TRACE(std::string(schedule));
      job.parallelism.recompute = {mode};
      ExpectSameBits(reference, Train(job));
    }
  }
}

TEST_F(BitEquality, OfADeviceOverFamilies) {
  for (const schedule::Family& family : schedule::Families()) {
    config::JobSpec job = JobWith(family, 2);
    // Parts are recorded when they come again after the first; losses of two steps have places.
    job.steps = 5;
    if (family.placement == schedule::Placement::kBidirectional) job.global_batch = 24;
    if (family.updates != schedule::Updates::kFlush) {  // no clipping, no tied embedding
      job.model = Llama(job.model);
      job.adamw.clip_norm = 0;
    }
    const RunResult reference = Train(job);
    for (const bool lazy : {false, true}) {
      SCOPED_TRACE(std::string(family.name) + (lazy ? " late" : " early"));
      ExpectSame(reference, TrainOnDevice(job, lazy));
    }
    SCOPED_TRACE(std::string(family.name) + " that copies");
    std::atomic<std::int64_t> copies = 0;
    const auto make_backends = [&copies](int threads) {
      return backend::CreateDiscreteBackends({.threads = threads,
                                              .prepared_only = true,
                                              .shared_bytes = std::size_t{1} << 30,
                                              .peer_copies = &copies});
    };
    ExpectSame(reference, Trained({.job = job, .make_backends = make_backends}));
    EXPECT_GT(copies, 0);
  }
}

// All ranks are on one device, so messages and sums never leave its memory.
TEST_F(BitEquality, OfADeviceThatRanksShare) {
  config::JobSpec job = Job();
  job.steps = 2;
  for (const std::string_view schedule : {"1f1b", "zb-v", "chimera"}) {
    job.parallelism = {.pipeline = 2, .data = 2, .chunks = std::nullopt, .threads = 1};
    job.parallelism.schedule = schedule;
    const RunResult reference = Train(job);
    for (const bool lazy : {false, true}) {
      SCOPED_TRACE(std::string(schedule) + (lazy ? " late" : " early"));
      const auto device = backend::CreateDiscreteBackends({.lazy = lazy, .prepared_only = true});
      const absl::StatusOr<RunResult> shared = TrainInProcess({.job = job, .device = device.get()});
      ASSERT_TRUE(shared.ok()) << shared.status();
      ExpectSameBits(reference, *shared);
    }
  }
}

TEST_F(BitEquality, OfADeviceOverModelsAndReplicas) {
  for (const bool llama : {false, true}) {
    for (const config::Precision precision : {config::Precision::kF32, config::Precision::kBf16}) {
      config::JobSpec job = Job();
      if (llama) job.model = Llama(job.model);
      job.precision = precision;
      job.steps = 2;
      job.parallelism = {.pipeline = 2, .data = 2, .chunks = 1, .threads = 2, .schedule = "zb-h1"};
      job.parallelism.recompute = {model::Recompute::kSelective};
      const RunResult reference = Train(job);
      for (const bool lazy : {false, true}) {
        SCOPED_TRACE(std::string(llama ? "llama" : "gpt2") + (lazy ? " late" : " early"));
        ExpectSameBits(reference, TrainOnDevice(job, lazy));
      }
    }
  }
}

TEST_F(BitEquality, OverPartitions) {
  config::JobSpec job = Job();
  const RunResult reference = Train(job);
  job.parallelism.pipeline = 3;
  job.parallelism.schedule = "1f1b";
  for (const std::vector<int>& stage_layers : {std::vector<int>{1, 6, 1}, {4, 1, 3}}) {
    job.parallelism.stage_layers = stage_layers;
    ExpectSameBits(reference, Train(job));
  }
}

TEST_F(BitEquality, OverStagesOfTheEmbeddingOrTheHeadAlone) {
  for (const bool llama : {false, true}) {
    config::JobSpec job = Job();
    job.model.layers = 4;
    if (llama) job.model = Llama(job.model);
    job.steps = 2;
    const RunResult reference = Train(job);
    job.parallelism.pipeline = 3;
    for (const std::vector<int>& stage_layers : {std::vector<int>{0, 4, 0}, {2, 2, 0}, {0, 1, 3}}) {
      job.parallelism.stage_layers = stage_layers;
      for (const std::string_view schedule : {"gpipe", "1f1b", "zb-h1"}) {
        for (const model::Recompute mode : {model::Recompute::kNone, model::Recompute::kFull}) {
          SCOPED_TRACE(std::string(schedule) + (llama ? " llama" : " gpt2"));
          job.parallelism.schedule = schedule;
          job.parallelism.recompute = {mode};
          ExpectSameBits(reference, Train(job));
        }
      }
      ExpectSameBits(reference, TrainOnDevice(job, /*lazy=*/false));
    }
  }
}

// These sizes are large enough that every op is cut into parts for several threads.
TEST_F(BitEquality, OverThreads) {
  config::JobSpec job = Job();
  job.model.hidden = 108;
  job.model.inner = 432;
  job.model.context = job.model.positions = 61;
  job.model.vocab = 517;
  job.microbatch = 4;
  job.steps = 2;
  for (const model::ModelConfig& model : {job.model, Mixtral(job.model), Qwen3Moe(job.model)}) {
    config::JobSpec other = job;
    other.model = model;
    const RunResult reference = Train(other);
    for (const int pp : {1, 2}) {
      other.parallelism.pipeline = pp;
      for (const int threads : {2, 3}) {
        other.parallelism.threads = threads;
        ExpectSameBits(reference, Train(other));
      }
    }
  }
}

TEST_F(BitEquality, OfAVocabularyOfSeveralBlocks) {
  for (const bool llama : {false, true}) {
    config::JobSpec job = Job();
    if (llama) job.model = Llama(job.model);
    job.model.vocab = 2 * model::kVocabularyBlock + 70;
    job.steps = 2;
    for (const config::Precision precision : {config::Precision::kF32, config::Precision::kBf16}) {
      SCOPED_TRACE(std::string(llama ? "llama" : "gpt2") +
                   (precision == config::Precision::kF32 ? " f32" : " bf16"));
      config::JobSpec other = job;
      job.precision = other.precision = precision;
      const RunResult reference = Train(job);
      other.parallelism = {.pipeline = 3,
                           .data = 1,
                           .threads = 2,
                           .schedule = "zb-h1",
                           .vocabulary = config::Vocabulary::kLast};
      ExpectSameBits(reference, Train(other));
      other.parallelism.recompute = {model::Recompute::kFull};
      other.parallelism.stage_layers = {4, 4, 0};
      ExpectSameBits(reference, Train(other));
    }
  }
}

TEST_F(BitEquality, OfReplicasOverPartitionsAndRuns) {
  for (const int dp : {2, 3}) {
    config::JobSpec job = Job();
    job.parallelism.data = dp;
    const RunResult reference = Train(job);
    SCOPED_TRACE("dp " + std::to_string(dp));
    for (int run = 0; run < 3; ++run) ExpectSameBits(reference, Train(job));
    job.parallelism.schedule = "1f1b";
    job.parallelism.pipeline = 2;
    ExpectSameBits(reference, Train(job));
    job.parallelism.stage_layers = {5, 3};
    ExpectSameBits(reference, Train(job));
  }
}

// The bits differ between degrees of data parallelism, but the values do not.
TEST_F(BitEquality, OfReplicasIsCloseToOneReplica) {
  config::JobSpec job = Job();
  const RunResult one = Train(job);
  job.parallelism.data = 3;
  const RunResult three = Train(job);
  ASSERT_EQ(one.steps.size(), three.steps.size());
  for (std::size_t i = 0; i < one.steps.size(); ++i) {
    EXPECT_NEAR(one.steps[i].loss, three.steps[i].loss, 1e-5);
    EXPECT_NEAR(one.steps[i].grad_norm, three.steps[i].grad_norm, 1e-4 * one.steps[i].grad_norm);
  }
}

// Makes every B an I at once and a W that runs `delay` actions of its stage later.
schedule::Schedule SplitBackward(const schedule::Schedule& whole, std::size_t delay) {
  schedule::Schedule split = whole;
  for (std::vector<schedule::Action>& row : split.ranks) {
    std::vector<schedule::Action> out, deferred;
    for (schedule::Action action : row) {
      if (action.kind != schedule::ActionKind::kBackward) {
        out.push_back(action);
        continue;
      }
      action.kind = schedule::ActionKind::kInputGrad;
      out.push_back(action);
      action.kind = schedule::ActionKind::kWeightGrad;
      deferred.push_back(action);
      if (deferred.size() > delay) {
        out.push_back(deferred.front());
        deferred.erase(deferred.begin());
      }
    }
    out.insert(out.end(), deferred.begin(), deferred.end());
    row = std::move(out);
  }
  return split;
}

TEST_F(BitEquality, OfSplitAndJointBackward) {
  const RunResult reference = Train(Job());
  for (const int pp : {1, 2, 3}) {
    for (const std::size_t delay : {0, 2, 12}) {
      const absl::StatusOr<schedule::Schedule> whole =
          schedule::Generate("1f1b", {.num_ranks = pp, .num_microbatches = 12});
      ASSERT_TRUE(whole.ok()) << whole.status();
      config::JobSpec job = Job();
      job.parallelism.pipeline = pp;
      job.parallelism.schedule = "file:split.csv";
      job.parallelism.schedule_csv = schedule::FormatCsv(SplitBackward(*whole, delay));
      SCOPED_TRACE("pp " + std::to_string(pp) + " delay " + std::to_string(delay));
      ExpectSameBits(reference, Train(job));
    }
  }
}

// A data-parallel rank's microbatches run in the same order whatever the length of the step.
TEST_F(BitEquality, IsNotTrivial) {
  const RunResult reference = Train(Job());
  config::JobSpec job = Job();
  job.seed = 43;
  const RunResult other = Train(job);
  ASSERT_FALSE(other.steps.empty());
  EXPECT_NE(reference.steps[0].loss, other.steps[0].loss);
  EXPECT_NE(reference.steps[0].grad_norm, other.steps[0].grad_norm);
}

}  // namespace
}  // namespace takt::numerics
