// SPDX-License-Identifier: Apache-2.0
// Jobs that need not be exact: weight gradients of several microbatches in one product.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/numerics/in_process_run.h"
#include "worker/backend/discrete/discrete_backend.h"

namespace takt::numerics {
namespace {

namespace fs = std::filesystem;

class MergedWeightGrads : public ::testing::Test {
 protected:
  MergedWeightGrads() {
    std::string pattern = (fs::temp_directory_path() / "takt-numerics-XXXXXX").string();
    directory_ = mkdtemp(pattern.data());
    std::ofstream data(directory_ / "train.txt", std::ios::binary);
    for (int i = 0; i < 3000; ++i) data << i * i << ' ';
  }
  ~MergedWeightGrads() override { fs::remove_all(directory_); }

  // Every tensor is a whole number of cache lines, so that neighbouring slots adjoin.
  config::JobSpec Job(const char* schedule) const {
    config::JobSpec job;
    job.name = "merged";
    job.model = {.layers = 8,
                 .hidden = 32,
                 .heads = 4,
                 .kv_heads = 4,
                 .inner = 64,
                 .context = 16,
                 .positions = 16,
                 .vocab = 131};
    job.train = {
        {.path = (directory_ / "train.txt").string(), .format = config::DataFormat::kBytes}};
    job.global_batch = 12;
    job.microbatch = 1;
    job.adamw.learning_rate = 3e-3;
    job.steps = 4;
    job.seed = 42;
    job.parallelism = {.pipeline = 4, .data = 1, .threads = 1, .schedule = schedule};
    return job;
  }

  static RunResult Train(config::JobSpec job, bool exact) {
    job.exact = exact;
    absl::StatusOr<RunResult> result = TrainInProcess({.job = job});
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *std::move(result) : RunResult();
  }

  fs::path directory_;
};

void ExpectSameBits(const RunResult& a, const RunResult& b) {
  ASSERT_EQ(a.steps.size(), b.steps.size());
  for (std::size_t i = 0; i < a.steps.size(); ++i) {
    EXPECT_EQ(a.steps[i].loss, b.steps[i].loss) << "step " << i + 1;
    EXPECT_EQ(a.steps[i].grad_norm, b.steps[i].grad_norm) << "step " << i + 1;
  }
  EXPECT_EQ(a.gradients, b.gradients);
  EXPECT_EQ(a.weights, b.weights);
}

// By how much the gradients of the first step differ, as a share of the largest one of each
// tensor, at most.
double LargestDifference(const Tensors& a, const Tensors& b) {
  double largest = 0;
  for (const auto& [name, values] : a) {
    const std::vector<float>& others = b.at(name);
    double scale = 0, difference = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      scale = std::max<double>(scale, std::abs(values[i]));
      difference = std::max<double>(difference, std::abs(values[i] - others[i]));
    }
    if (scale > 0) largest = std::max(largest, difference / scale);
  }
  return largest;
}

// The order of summation over 12 * 16 rows, in f32: an error of at most rows * 2^-24 of the sum of
// magnitudes, which is some times the largest sum. Later steps add the effect of AdamW, which
// divides by the gradient's size.
TEST_F(MergedWeightGrads, AreThoseOfOneByOneButForRounding) {
  for (const char* schedule : {"zb-h1", "zb-h2", "zb-v"}) {
    SCOPED_TRACE(schedule);
    config::JobSpec job = Job(schedule);
    const RunResult exact = Train(job, true), merged = Train(job, false);
    ASSERT_EQ(merged.steps.size(), exact.steps.size());
    EXPECT_EQ(merged.steps[0].loss, exact.steps[0].loss);
    for (std::size_t i = 0; i < exact.steps.size(); ++i) {
      EXPECT_NEAR(merged.steps[i].loss, exact.steps[i].loss, 1e-5 * exact.steps[i].loss);
      EXPECT_NEAR(merged.steps[i].grad_norm, exact.steps[i].grad_norm,
                  1e-4 * exact.steps[i].grad_norm);
    }
    EXPECT_NE(merged.gradients, exact.gradients);  // something was summed in another order
    job.steps = 1;
    EXPECT_LT(LargestDifference(Train(job, true).gradients, Train(job, false).gradients), 2e-5);
    ExpectSameBits(merged, Train(Job(schedule), false));  // the same from run to run
  }
}

TEST_F(MergedWeightGrads, OfAllFamiliesPrecisionsAndModesOfRecomputation) {
  using model::Recompute;
  for (const model::Family family : {model::Family::kGpt2, model::Family::kLlama}) {
    for (const Recompute mode : {Recompute::kSelective, Recompute::kFull}) {
      SCOPED_TRACE(absl::StrCat("family ", static_cast<int>(family), " ", std::string(Name(mode))));
      config::JobSpec job = Job("zb-h2");
      job.steps = 1;
      job.model.family = family;
      if (family == model::Family::kLlama) {
        job.model.kv_heads = 2;
        job.model.head_size = 8;
        job.model.tied_head = false;
      }
      if (mode == Recompute::kFull) job.precision = model::Precision::kBf16;
      job.parallelism.recompute = {mode};
      const RunResult exact = Train(job, true), merged = Train(job, false);
      EXPECT_EQ(merged.steps[0].loss, exact.steps[0].loss);
      EXPECT_NE(merged.gradients, exact.gradients);
      EXPECT_LT(LargestDifference(exact.gradients, merged.gradients), 2e-5);
    }
  }
}

TEST_F(MergedWeightGrads, NothingChangesWhereNoneFollowEachOther) {
  for (const char* schedule : {"1f1b", "gis"}) {
    SCOPED_TRACE(schedule);
    ExpectSameBits(Train(Job(schedule), true), Train(Job(schedule), false));
  }
}

// Nothing adjoins, so each product is one microbatch's, in the order of exact jobs.
TEST_F(MergedWeightGrads, OddSizesAreComputedOneByOne) {
  config::JobSpec job = Job("zb-h2");
  job.model.context = 13;
  job.model.hidden = 36;
  job.model.inner = 44;
  ExpectSameBits(Train(job, true), Train(job, false));
}

// Which runs no product that its trainer did not prepare it for.
TEST_F(MergedWeightGrads, OnADeviceAreThoseOfTheHost) {
  using model::Recompute;
  for (const Recompute mode : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    SCOPED_TRACE(std::string(Name(mode)));
    config::JobSpec job = Job("zb-h2");
    job.exact = false;
    job.parallelism.recompute = {mode};
    const RunResult host = Train(job, false);
    const auto device = TrainInProcess({.job = job, .make_backends = [](int threads) {
                                          return backend::CreateDiscreteBackends(
                                              {.threads = threads, .prepared_only = true});
                                        }});
    ASSERT_TRUE(device.ok()) << device.status();
    ExpectSameBits(host, *device);
  }
}

}  // namespace
}  // namespace takt::numerics
