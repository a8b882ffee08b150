// SPDX-License-Identifier: Apache-2.0
// Loss and gradient norm have the same bits for every schedule, number of stages and chunks,
// partition and number of threads.
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "common/schedule/generate.h"
#include "common/schedule/text.h"
#include "gtest/gtest.h"
#include "tests/numerics/in_process_run.h"
#include "worker/backend/discrete/discrete_backend.h"

namespace takt::numerics {
namespace {

namespace fs = std::filesystem;

class BitEquality : public testing::Test {
 protected:
  BitEquality() {
    std::string pattern = (fs::temp_directory_path() / "takt-numerics-XXXXXX").string();
    directory_ = mkdtemp(pattern.data());
    std::ofstream data(directory_ / "train.txt", std::ios::binary);
    // Not periodic in any window: digits of squares.
    for (int i = 0; i < 3000; ++i) data << i * i << ' ';
  }
  ~BitEquality() override { fs::remove_all(directory_); }

  // Sizes that no vector width divides.
  config::JobSpec Job() const {
    config::JobSpec job;
    job.name = "bits";
    job.model = {.layers = 8,
                 .hidden = 36,
                 .heads = 3,
                 .kv_heads = 3,
                 .inner = 144,
                 .context = 19,
                 .positions = 19,
                 .vocab = 131};
    job.train = {
        {.path = (directory_ / "train.txt").string(), .format = config::DataFormat::kBytes}};
    job.validation = {
        .path = job.train[0].path, .format = config::DataFormat::kBytes, .batches = 2};
    job.shuffle = true;
    job.global_batch = 12;
    job.microbatch = 1;
    job.adamw.learning_rate = 3e-3;
    job.adamw.clip_norm = 0.5;
    job.lr_schedule.warmup_steps = 2;
    job.steps = 4;
    job.seed = 42;
    job.parallelism = {.pipeline = 1, .data = 1, .chunks = 1, .threads = 1, .schedule = "naive"};
    return job;
  }

  config::JobSpec JobWith(const schedule::Family& family, int pp) const {
    config::JobSpec job = Job();
    job.parallelism.schedule = family.name;
    job.parallelism.pipeline = pp;
    job.parallelism.chunks = std::nullopt;  // the family's own
    return job;
  }

  static RunResult Trained(const RunOptions& options) {
    absl::StatusOr<RunResult> result = TrainInProcess(options);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *std::move(result) : RunResult();
  }
  static RunResult Train(const config::JobSpec& job) { return Trained({.job = job}); }

  // On a device whose memory the host cannot touch: what it is given is done later, on streams, as
  // soon as it can be or as late as somebody waits for it.
  static RunResult TrainOnDevice(const config::JobSpec& job, bool lazy,
                                 config::DeviceKind planned_for = config::DeviceKind::kCpu) {
    std::atomic<std::int64_t> replays = 0;
    RunResult result = Trained(
        {.job = job, .planned_for = planned_for, .make_backends = [&](int threads) {
           return backend::CreateDiscreteBackends(
               {.threads = threads, .lazy = lazy, .prepared_only = true, .replays = &replays});
         }});
    EXPECT_TRUE(replays > 0 || job.steps <= 2) << "nothing was recorded";
    return result;
  }

  fs::path directory_;
};

// EXPECT_EQ on doubles tells bits apart except for zeros and NaN.
void ExpectSame(const RunResult& a, const RunResult& b) {
  ASSERT_EQ(a.steps.size(), b.steps.size());
  for (std::size_t i = 0; i < a.steps.size(); ++i) {
    EXPECT_EQ(a.steps[i].loss, b.steps[i].loss) << "step " << i + 1;
    EXPECT_EQ(a.steps[i].grad_norm, b.steps[i].grad_norm) << "step " << i + 1;
    EXPECT_GT(a.steps[i].loss, 0);
  }
  EXPECT_TRUE(a.validation_loss.has_value());
  EXPECT_EQ(a.validation_loss, b.validation_loss);
  EXPECT_EQ(a.gradients, b.gradients);
  EXPECT_EQ(a.weights, b.weights);
}

void ExpectSameBits(const RunResult& a, const RunResult& b) {
  ExpectSame(a, b);
  for (const train::StepResult& step : a.steps) EXPECT_GT(step.grad_norm, 0);
}

TEST_F(BitEquality, OverFamiliesStagesAndChunks) {
  const RunResult reference = Train(Job());
  ASSERT_EQ(reference.steps.size(), 4U);
  EXPECT_LT(reference.steps[3].loss, reference.steps[0].loss);
  for (const schedule::Family& family : schedule::Families()) {
    if (family.placement == schedule::Placement::kBidirectional) continue;
    if (family.updates != schedule::Updates::kFlush) continue;
    for (const int pp : {1, 2, 3, 4}) {
      SCOPED_TRACE(std::string(family.name) + " pp " + std::to_string(pp));
      ExpectSameBits(reference, Train(JobWith(family, pp)));
    }
  }
}

TEST_F(BitEquality, OfReplicasOverFamilies) {
  config::JobSpec job = Job();
  job.parallelism.data = 2;
  const RunResult reference = Train(job);
  for (const schedule::Family& family : schedule::Families()) {
    if (family.placement == schedule::Placement::kBidirectional) continue;
    if (family.updates != schedule::Updates::kFlush) continue;
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

model::ModelConfig Llama(model::ModelConfig config) {
  config.family = model::Family::kLlama;
  config.kv_heads = 1;
  config.head_size = 12;
  config.inner = 100;
  config.tied_head = false;
  return config;
}

// What is computed again has the bits it had, whether W follows its I or waits.
TEST_F(BitEquality, OverWhatIsRecomputed) {
  using enum model::Recompute;
  for (const bool llama : {false, true}) {
    config::JobSpec job = Job();
    job.model.layers = 4;
    if (llama) job.model = Llama(job.model);
    job.steps = 2;
    const RunResult reference = Train(job);
    for (const schedule::Family& family : schedule::Families()) {
      if (family.placement == schedule::Placement::kBidirectional) continue;
      if (family.updates != schedule::Updates::kFlush) continue;
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
  }
}

// All ranks on one device: messages and sums never leave its memory.
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

// Large enough that every op is cut into parts for several threads.
TEST_F(BitEquality, OverThreads) {
  config::JobSpec job = Job();
  job.model.hidden = 108;
  job.model.inner = 432;
  job.model.context = job.model.positions = 61;
  job.model.vocab = 517;
  job.microbatch = 4;
  job.steps = 2;
  const RunResult reference = Train(job);
  for (const int pp : {1, 2}) {
    job.parallelism.pipeline = pp;
    for (const int threads : {2, 3}) {
      job.parallelism.threads = threads;
      ExpectSameBits(reference, Train(job));
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

// The bits differ between degrees of data parallelism, the values do not.
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

// Every B as an I at once and a W that runs `delay` actions of its stage later.
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

// Weights are packed by each holder, products are cut by shape alone, and messages are f32.
TEST_F(BitEquality, OfBf16OverFamiliesPartitionsAndThreads) {
  config::JobSpec job = Job();
  job.precision = config::Precision::kBf16;
  const RunResult reference = Train(job);
  EXPECT_NE(reference.steps.at(0).loss, Train(Job()).steps.at(0).loss);
  for (const char* schedule : {"gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-v"}) {
    for (const int pp : {1, 2, 3}) {
      if (std::string_view(schedule) == "zb-v" && pp == 3) continue;  // 8 blocks on 6 stages
      for (const int threads : {1, 2}) {
        SCOPED_TRACE(std::string(schedule) + " pp " + std::to_string(pp) + " threads " +
                     std::to_string(threads));
        job.parallelism.schedule = schedule;
        job.parallelism.pipeline = pp;
        job.parallelism.chunks = std::nullopt;
        job.parallelism.threads = threads;
        ExpectSameBits(reference, Train(job));
      }
    }
  }
  job.parallelism = {
      .pipeline = 3, .data = 1, .chunks = 1, .schedule = "1f1b", .stage_layers = {1, 6, 1}};
  ExpectSameBits(reference, Train(job));
}

TEST_F(BitEquality, OfBf16ReplicasAndOfTwoCopies) {
  config::JobSpec job = Job();
  job.precision = config::Precision::kBf16;
  job.global_batch = 24;
  job.parallelism.data = 2;
  const RunResult reference = Train(job);
  job.parallelism.pipeline = 2;
  job.parallelism.schedule = "1f1b";
  ExpectSameBits(reference, Train(job));
  job.parallelism.data = 1;
  job.parallelism.chunks = std::nullopt;
  job.parallelism.schedule = "dualpipe";
  ExpectSameBits(reference, Train(job));
}

// As a bf16 job on GPUs: activations are rounded where they are made, never where a model is cut.
class Bf16Activations : public BitEquality {
 protected:
  config::JobSpec Bf16Job() const {
    config::JobSpec job = Job();
    job.model.layers = 4;
    job.precision = config::Precision::kBf16;
    job.steps = 2;
    return job;
  }

  static RunResult TrainAsOnGpus(const config::JobSpec& job) {
    return Trained({.job = job, .planned_for = config::DeviceKind::kCuda});
  }
};

TEST_F(Bf16Activations, AreOfGpusAlone) {
  const RunResult on_gpus = TrainAsOnGpus(Bf16Job()), on_cpus = Train(Bf16Job());
  EXPECT_NE(on_gpus.steps.at(0).loss, on_cpus.steps.at(0).loss);
  EXPECT_NEAR(on_gpus.steps.at(0).loss, on_cpus.steps.at(0).loss, 1e-3);
}

TEST_F(Bf16Activations, GiveTheSameBitsOverFamiliesPartitionsAndThreads) {
  for (const bool llama : {false, true}) {
    config::JobSpec job = Bf16Job();
    if (llama) job.model = Llama(job.model);
    const RunResult reference = TrainAsOnGpus(job);
    for (const schedule::Family& family : schedule::Families()) {
      if (family.placement == schedule::Placement::kBidirectional) continue;
      if (family.updates != schedule::Updates::kFlush) continue;
      SCOPED_TRACE(std::string(family.name) + (llama ? " llama" : " gpt2"));
      job.parallelism = JobWith(family, 2).parallelism;
      ExpectSameBits(reference, TrainAsOnGpus(job));
    }
    job.parallelism = {.pipeline = 3,
                       .data = 1,
                       .chunks = 1,
                       .threads = 2,
                       .schedule = "1f1b",
                       .stage_layers = {1, 2, 1}};
    ExpectSameBits(reference, TrainAsOnGpus(job));
  }
}

TEST_F(Bf16Activations, GiveTheSameBitsOverReplicasAndTwoCopies) {
  config::JobSpec job = Bf16Job();
  job.global_batch = 24;
  job.parallelism.data = 2;
  const RunResult reference = TrainAsOnGpus(job);
  job.parallelism.pipeline = 2;
  job.parallelism.schedule = "zb-h1";
  ExpectSameBits(reference, TrainAsOnGpus(job));
  job.parallelism.data = 1;
  job.parallelism.chunks = std::nullopt;
  job.parallelism.schedule = "dualpipe";
  ExpectSameBits(reference, TrainAsOnGpus(job));
}

// `selective` takes GELU of what was rounded, the others may take it before: its bits are its own
// with GPT-2, the same over schedules.
TEST_F(Bf16Activations, GiveTheSameBitsOverWhatIsRecomputed) {
  using enum model::Recompute;
  for (const bool llama : {false, true}) {
    config::JobSpec job = Bf16Job();
    if (llama) job.model = Llama(job.model);
    const RunResult kept = TrainAsOnGpus(job);
    job.parallelism.recompute = {kSelective};
    const RunResult selective = TrainAsOnGpus(job);
    if (llama) {
      ExpectSameBits(kept, selective);
    } else {  // the CPU takes it before
      EXPECT_NE(kept.steps.at(0).loss, selective.steps.at(0).loss);
    }
    for (const char* schedule : {"1f1b", "zb-h1", "zb-v"}) {
      for (const model::Recompute mode : {kSelective, kFull}) {
        SCOPED_TRACE(std::string(schedule) + (llama ? " llama " : " gpt2 ") +
                     std::string(model::Name(mode)));
        job.parallelism = {.pipeline = 2, .data = 1, .threads = 1, .schedule = schedule};
        job.parallelism.recompute = {mode};
        ExpectSameBits(mode == kSelective ? selective : kept, TrainAsOnGpus(job));
      }
    }
  }
}

TEST_F(Bf16Activations, GiveTheSameBitsOnADevice) {
  for (const bool llama : {false, true}) {
    config::JobSpec job = Bf16Job();
    if (llama) job.model = Llama(job.model);
    job.steps = 3;  // of which some are replayed
    job.parallelism = {.pipeline = 2, .data = 2, .chunks = 1, .threads = 2, .schedule = "zb-h1"};
    job.parallelism.recompute = {model::Recompute::kSelective};
    const RunResult reference = TrainAsOnGpus(job);
    for (const bool lazy : {false, true}) {
      SCOPED_TRACE(std::string(llama ? "llama" : "gpt2") + (lazy ? " late" : " early"));
      ExpectSameBits(reference, TrainOnDevice(job, lazy, config::DeviceKind::kCuda));
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
