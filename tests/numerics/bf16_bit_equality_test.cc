// SPDX-License-Identifier: Apache-2.0
// Tests that in bf16, too, loss and gradient norm have the same bits for every schedule, partition
// and number of threads.
#include "tests/numerics/bit_equality.h"

namespace takt::numerics {
namespace {

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
  ExpectSameBitsOnReplicasAndCopies(job);
}

// Trains as a bf16 job on GPUs does: activations are rounded where they are made, never where a
// model is cut.
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
    SCOPED_TRACE(llama ? "llama" : "gpt2");
    ExpectSameBitsOverFamiliesAndPartitions(job, TrainAsOnGpus);
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

// `selective` takes GELU of rounded values, and the others may take it before. So with GPT-2 its
// bits are its own, and the same over schedules.
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
    } else {  // the CPU takes GELU before it rounds
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
    job.steps = 3;  // some of the steps are replayed
    job.parallelism = {.pipeline = 2, .data = 2, .chunks = 1, .threads = 2, .schedule = "zb-h1"};
    job.parallelism.recompute = {model::Recompute::kSelective};
    const RunResult reference = TrainAsOnGpus(job);
    for (const bool lazy : {false, true}) {
      SCOPED_TRACE(std::string(llama ? "llama" : "gpt2") + (lazy ? " late" : " early"));
      ExpectSameBits(reference, TrainOnDevice(job, lazy, config::DeviceKind::kCuda));
    }
  }
}

}  // namespace
}  // namespace takt::numerics
