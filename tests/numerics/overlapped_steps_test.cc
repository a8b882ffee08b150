// SPDX-License-Identifier: Apache-2.0
// Tests that steps without a barrier have the bits of steps with one, whether gradients are clipped
// or not.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "tests/numerics/bit_equality.h"

namespace takt::numerics {
namespace {

class OverlappedSteps : public BitEquality {
 protected:
  config::JobSpec With(const std::string& schedule, int pp, int dp) const {
    config::JobSpec job = Job();
    job.global_batch *= dp;
    job.parallelism = {.pipeline = pp, .data = dp, .threads = 1, .schedule = schedule};
    job.parallelism.vocabulary = config::Vocabulary::kLast;
    job.parallelism.shard = config::Shard::kNone;
    return job;
  }

  static config::JobSpec WithBarrier(config::JobSpec job) {
    job.barrier = config::Barrier::kAlways;
    job.parallelism.pipeline = 1;
    job.parallelism.schedule = "naive";
    return job;
  }
  static config::JobSpec WithoutBarrier(config::JobSpec job) {
    job.barrier = config::Barrier::kNever;
    return job;
  }

  // Returns a bound that clips some steps and not others.
  double BetweenNorms(config::JobSpec job) {
    job.adamw.clip_norm = 0;
    const RunResult run = Train(WithBarrier(job));
    double least = run.steps[0].grad_norm, most = least;
    for (const train::StepResult& step : run.steps) {
      least = std::min(least, step.grad_norm);
      most = std::max(most, step.grad_norm);
    }
    return std::sqrt(least * most);
  }

  static int Undone(const RunResult& run) {
    int undone = 0;
    for (const train::StepResult& step : run.steps) undone += step.undone ? 1 : 0;
    return undone;
  }
};

// EXPECT_EQ does not compare NaN.
void ExpectSameTensors(const Tensors& a, const Tensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, values] : a) {
    const std::vector<float>& others = b.at(name);
    ASSERT_EQ(values.size(), others.size()) << name;
    EXPECT_EQ(std::memcmp(values.data(), others.data(), values.size() * sizeof(float)), 0) << name;
  }
}

TEST_F(OverlappedSteps, HaveTheBitsOfABarrierOverSchedules) {
  for (const double clip_norm : {0.0, 0.01, -1.0}) {
    for (const int dp : {1, 2}) {
      config::JobSpec job = With("naive", 1, dp);
      job.steps = 6;
      job.adamw.clip_norm = clip_norm < 0 ? BetweenNorms(job) : clip_norm;
      const RunResult reference = Train(WithBarrier(job));
      for (const char* schedule : {"1f1b", "zb-h1", "zb-h2", "zb-v", "auto"}) {
        for (const int pp : {2, 3, 4}) {
          SCOPED_TRACE(std::string(schedule) + " pp " + std::to_string(pp) + " dp " +
                       std::to_string(dp) + " clip " + std::to_string(clip_norm));
          config::JobSpec overlapped = WithoutBarrier(With(schedule, pp, dp));
          ASSERT_EQ(overlapped.global_batch, job.global_batch);
          overlapped.steps = job.steps;
          overlapped.adamw.clip_norm = job.adamw.clip_norm;
          const RunResult run = Train(overlapped);
          ExpectSameBits(reference, run);
          if (clip_norm > 0) {
            EXPECT_EQ(Undone(run), 6);
          } else if (clip_norm == 0) {
            EXPECT_EQ(Undone(run), 0);
          } else {
            EXPECT_GT(Undone(run), 0);
            EXPECT_LT(Undone(run), 6);
          }
        }
      }
    }
  }
}

TEST_F(OverlappedSteps, HaveTheBitsOfABarrierWithOtherOptimizersAndPrecisions) {
  for (const int optimizer : {0, 1, 2, 3, 4}) {
    for (const config::Precision precision : {config::Precision::kF32, config::Precision::kBf16}) {
      SCOPED_TRACE(std::to_string(optimizer) +
                   (precision == config::Precision::kF32 ? " f32" : " bf16"));
      config::JobSpec job = With("zb-h2", 2, 1);
      job.precision = precision;
      job.groups = {{.parameters = "*.bias", .learning_rate_scale = 0}};
      if (optimizer == 1) job.lion = config::Lion{.learning_rate = 1e-3, .clip_norm = 0.5};
      if (optimizer == 2) {
        job.sgd = config::Sgd{.learning_rate = 0.1, .nesterov = true, .clip_norm = 0.5};
      }
      if (optimizer == 3) job.sgd = config::Sgd{.learning_rate = 0.5, .momentum = 0};
      if (optimizer == 4) job.muon = config::Muon{.learning_rate = 3e-3, .clip_norm = 0.5};
      ExpectSameBits(Train(WithBarrier(job)), Train(WithoutBarrier(job)));
    }
  }
}

// Foreseen shards become whole like true ones.
TEST_F(OverlappedSteps, HaveTheBitsOfABarrierWhereReplicasShareTheOptimizersState) {
  for (const double clip_norm : {0.0, 0.01, -1.0}) {
    config::JobSpec job = With("naive", 1, 2);
    job.steps = 6;
    job.adamw.clip_norm = clip_norm < 0 ? BetweenNorms(job) : clip_norm;
    for (const config::Precision precision : {config::Precision::kF32, config::Precision::kBf16}) {
      job.precision = precision;
      RunResult reference = Train(WithBarrier(job));
      reference.gradients.clear();
      for (const char* schedule : {"1f1b", "zb-h2", "zb-v"}) {
        SCOPED_TRACE(std::string(schedule) + " clip " + std::to_string(clip_norm) +
                     (precision == config::Precision::kBf16 ? " bf16" : " f32"));
        config::JobSpec shared = WithoutBarrier(job);
        shared.parallelism.pipeline = 2;
        shared.parallelism.schedule = schedule;
        shared.parallelism.shard = config::Shard::kOptimizer;
        ExpectSameBits(reference, Train(shared));
        ExpectSameBits(reference, Trained({.job = shared, .stop_every = 2}));
      }
    }
  }
}

TEST_F(OverlappedSteps, HaveTheBitsOfABarrierWhereDevicesShareTheOptimizersState) {
  for (const double clip_norm : {0.0, 0.01}) {
    config::JobSpec job = With("zb-h2", 2, 2);
    job.precision = config::Precision::kBf16;
    job.adamw.clip_norm = clip_norm;
    job.parallelism.shard = config::Shard::kOptimizer;
    for (const bool lazy : {false, true}) {
      ExpectSameBits(TrainOnDevice(WithBarrier(job), lazy),
                     TrainOnDevice(WithoutBarrier(job), lazy));
    }
  }
}

TEST_F(OverlappedSteps, HaveTheBitsOfABarrierWithOtherModels) {
  for (model::ModelConfig (*const family)(model::ModelConfig) : {&Llama, &Mixtral}) {
    config::JobSpec job = With("1f1b", 3, 1);
    job.model = family(job.model);
    ExpectSameBits(Train(WithBarrier(job)), Train(WithoutBarrier(job)));
  }
}

TEST_F(OverlappedSteps, HaveTheBitsOfABarrierOnDevices) {
  for (const double clip_norm : {0.0, 0.01}) {
    config::JobSpec job = With("zb-h2", 2, 1);
    job.adamw.clip_norm = clip_norm;
    const RunResult reference = Train(WithBarrier(job));
    for (const bool lazy : {false, true})
      ExpectSameBits(reference, TrainOnDevice(WithoutBarrier(job), lazy));
  }
}

// Where a Run of the engine ends, as before a checkpoint, there is the state of one step.
TEST_F(OverlappedSteps, HaveTheBitsOfABarrierWhereverTheyStop) {
  for (const double clip_norm : {0.0, 0.01}) {
    config::JobSpec job = With("zb-h2", 4, 1);
    job.adamw.clip_norm = clip_norm;
    const RunResult reference = Train(WithBarrier(job));
    for (const std::int64_t stop_every : {1, 3})
      ExpectSameBits(reference, Trained({.job = WithoutBarrier(job), .stop_every = stop_every}));
    config::JobSpec first = WithoutBarrier(job);
    first.steps = 2;
    const RunResult half = Train(first);
    RunResult rest = Trained({.job = WithoutBarrier(job), .resume = &half});
    ASSERT_EQ(rest.steps.size(), 2U);
    rest.steps.insert(rest.steps.begin(), half.steps.begin(), half.steps.end());
    ExpectSameBits(reference, rest);
  }
}

TEST_F(OverlappedSteps, HaveTheBitsOfABarrierWithGradientsThatAreNotFinite) {
  config::JobSpec job = With("zb-h2", 4, 1);
  job.validation = std::nullopt;
  job.lr_schedule.warmup_steps = 0;
  job.adamw.learning_rate = 1e36;  // the second step has weights that overflow products
  job.steps = 3;
  config::JobSpec with_barrier = job;  // of the same schedule, because NaN have many bits
  with_barrier.barrier = config::Barrier::kAlways;
  const RunResult reference = Train(with_barrier), run = Train(WithoutBarrier(job));
  ASSERT_EQ(run.steps.size(), 3U);
  ASSERT_EQ(reference.steps.size(), 3U);
  EXPECT_TRUE(std::isfinite(run.steps[0].grad_norm));
  EXPECT_FALSE(std::isfinite(run.steps[1].grad_norm));
  for (std::size_t i = 0; i < run.steps.size(); ++i) {
    EXPECT_EQ(std::memcmp(&run.steps[i].loss, &reference.steps[i].loss, sizeof(double)), 0);
    EXPECT_EQ(std::memcmp(&run.steps[i].grad_norm, &reference.steps[i].grad_norm, sizeof(double)),
              0);
  }
  ExpectSameTensors(reference.weights, run.weights);
  ExpectSameTensors(reference.gradients, run.gradients);
}

// Where the plan takes the barrier out of a job that leaves it open, steps foresee after ten that
// were not clipped.
TEST_F(OverlappedSteps, HaveTheBitsOfABarrierWherePlansDecide) {
  config::JobSpec job = With("zb-h2", 4, 1);
  job.adamw.clip_norm = 100;
  job.steps = 14;
  const RunResult run = Trained({.job = job, .planned_without_barrier = true});
  ExpectSameBits(Train(WithBarrier(job)), run);
  for (std::size_t i = 0; i < run.steps.size(); ++i) {
    EXPECT_EQ(run.steps[i].held, i < 10) << i;
    EXPECT_FALSE(run.steps[i].undone) << i;
  }
}

// Where replicas share the optimizer's state no step holds: all foresee.
TEST_F(OverlappedSteps, HoldNothingWhereReplicasShareTheOptimizersState) {
  config::JobSpec job = With("zb-h2", 2, 2);
  job.adamw.clip_norm = 100;
  RunResult reference = Train(WithBarrier(job));
  reference.gradients.clear();
  job.parallelism.shard = config::Shard::kOptimizer;
  const RunResult run = Trained({.job = job, .planned_without_barrier = true});
  ExpectSameBits(reference, run);
  for (const train::StepResult& step : run.steps) EXPECT_FALSE(step.held || step.undone);
}

TEST_F(OverlappedSteps, HaveTheBitsOfABarrierWithMergedWeightGradients) {
  config::JobSpec job = With("zb-h1", 2, 2);
  job.exact = false;
  config::JobSpec barrier = job;
  barrier.barrier = config::Barrier::kAlways;
  ExpectSameBits(Train(barrier), Train(WithoutBarrier(job)));
}

}  // namespace
}  // namespace takt::numerics
