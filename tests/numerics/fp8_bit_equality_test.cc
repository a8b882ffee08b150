// SPDX-License-Identifier: Apache-2.0
// Tests that in FP8, too, loss and gradient norm have the same bits for every schedule, partition,
// number of threads and way to recompute: each scale is of one operand of one product, whole on one
// rank.
#include <string>
#include <string_view>

#include "tests/numerics/bit_equality.h"

namespace takt::numerics {
namespace {

using model::Fp8Recipe;

model::ModelConfig Gpt2(model::ModelConfig config) { return config; }

class Fp8BitEquality : public BitEquality {
 protected:
  config::JobSpec Fp8Job(Fp8Recipe recipe) const {
    config::JobSpec job = Job();
    job.precision = config::Precision::kBf16;
    job.fp8 = recipe;
    return job;
  }
};

TEST_F(Fp8BitEquality, RecipesRoundOtherwiseAndAlmostTheSame) {
  const double bf16 = Train(Fp8Job(Fp8Recipe::kNone)).steps.at(3).loss;
  const double tensor = Train(Fp8Job(Fp8Recipe::kTensor)).steps.at(3).loss;
  const double block = Train(Fp8Job(Fp8Recipe::kBlock)).steps.at(3).loss;
  EXPECT_NE(tensor, bf16);
  EXPECT_NE(block, bf16);
  EXPECT_NE(block, tensor);
  EXPECT_NEAR(tensor, bf16, 0.1);
  EXPECT_NEAR(block, bf16, 0.1);
}

TEST_F(Fp8BitEquality, OverFamiliesPartitionsAndThreads) {
  for (const Fp8Recipe recipe : {Fp8Recipe::kTensor, Fp8Recipe::kBlock}) {
    config::JobSpec job = Fp8Job(recipe);
    const RunResult reference = Train(job);
    for (const char* schedule : {"gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-v"}) {
      for (const int pp : {2, 3}) {
        if (std::string_view(schedule) == "zb-v" && pp == 3) continue;  // 8 blocks on 6 stages
        SCOPED_TRACE(std::string(schedule) + " pp " + std::to_string(pp));
        job.parallelism.schedule = schedule;
        job.parallelism.pipeline = pp;
        job.parallelism.chunks = std::nullopt;
        job.parallelism.threads = 4 - pp;
        ExpectSameBits(reference, Train(job));
      }
    }
    job.parallelism = {
        .pipeline = 3, .data = 1, .chunks = 1, .schedule = "1f1b", .stage_layers = {1, 6, 1}};
    ExpectSameBits(reference, Train(job));
  }
}

// A microbatch has more rows than a block here, and the last block of each operand is not whole.
TEST_F(Fp8BitEquality, OfOperandsWithSeveralBlocks) {
  config::JobSpec job = Fp8Job(Fp8Recipe::kBlock);
  job.model.layers = 4;
  job.model.hidden = 132;
  job.model.inner = 260;
  job.global_batch = 24;
  job.microbatch = 8;
  job.steps = 2;
  const RunResult reference = Train(job);
  for (const char* schedule : {"1f1b", "zb-h1"}) {
    SCOPED_TRACE(schedule);
    job.parallelism.schedule = schedule;
    job.parallelism.pipeline = 3;
    job.parallelism.threads = 3;
    ExpectSameBits(reference, Train(job));
  }
}

TEST_F(Fp8BitEquality, OfReplicasAndOfTwoCopies) {
  for (const Fp8Recipe recipe : {Fp8Recipe::kTensor, Fp8Recipe::kBlock}) {
    config::JobSpec job = Fp8Job(recipe);
    ExpectSameBitsOnReplicasAndCopies(job);
  }
}

TEST_F(Fp8BitEquality, OverWhatIsRecomputedAndOnADevice) {
  for (const Fp8Recipe recipe : {Fp8Recipe::kTensor, Fp8Recipe::kBlock}) {
    for (model::ModelConfig (*const family)(model::ModelConfig) :
         {&Gpt2, &Llama, &Qwen3, &Mistral}) {
      config::JobSpec job = Fp8Job(recipe);
      job.model.layers = 4;
      job.model = family(job.model);
      job.steps = 3;  // some of the steps are replayed
      ExpectSameBitsOverRecompute(job, {"1f1b", "zb-h1"});
    }
  }
}

}  // namespace
}  // namespace takt::numerics
