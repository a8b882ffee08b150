// SPDX-License-Identifier: Apache-2.0
// Tests that a vocabulary that is spread over all ranks gives the bits of one that is not.
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/model/vocabulary.h"
#include "tests/numerics/spread_bit_equality.h"

namespace takt::numerics {
namespace {

class SpreadVocabulary : public SpreadBitEquality {};

TEST_F(SpreadVocabulary, HasTheBitsOfTheWholeOneOverSchedulesAndRanks) {
  for (const model::Family family : {model::Family::kGpt2, model::Family::kLlama}) {
    const RunResult reference = Train(Job(family));
    for (const char* schedule : {"1f1b", "zb-h1", "zb-v"}) {
      for (const int pp : {2, 3}) {
        SCOPED_TRACE(absl::StrCat("family ", static_cast<int>(family), " ", schedule, " pp ", pp));
        ExpectSameBits(reference, TrainSpread(On(pp, schedule, Job(family))));
      }
    }
  }
}

// One rank then has the only block, and the others pass nothing but the norm's output.
TEST_F(SpreadVocabulary, MayBeASingleBlock) {
  config::JobSpec job = Job();
  job.model.vocab = model::kVocabularyBlock;
  job.train[0].format = job.validation->format = config::DataFormat::kBytes;
  ExpectSameBits(Train(job), TrainSpread(On(3, "1f1b", job)));
}

TEST_F(SpreadVocabulary, OfReplicas) {
  for (const model::Family family : {model::Family::kGpt2, model::Family::kLlama}) {
    config::JobSpec job = Job(family);
    job.parallelism.data = 2;
    ExpectSameBits(Train(job), TrainSpread(On(2, "1f1b", job)));
  }
}

TEST_F(SpreadVocabulary, OfBf16AndThreads) {
  config::JobSpec job = Job();
  job.precision = config::Precision::kBf16;
  const RunResult reference = Train(job);
  job.parallelism.threads = 2;
  ExpectSameBits(reference, TrainSpread(On(2, "zb-v", job)));
}

TEST_F(SpreadVocabulary, OfSmoothedTargetsAndZLoss) {
  config::JobSpec job = Job();
  const RunResult plain = Train(job);
  job.loss = {.label_smoothing = 0.1, .z_loss = 1e-3};
  const RunResult reference = Train(job);
  EXPECT_GT(reference.steps[0].loss, plain.steps[0].loss);
  for (const char* schedule : {"1f1b", "zb-v"}) {
    ExpectSameBits(reference, TrainSpread(On(2, schedule, job)));
    ExpectSameBits(reference, Train(On(3, schedule, job, config::Vocabulary::kLast)));
  }
}

TEST_F(SpreadVocabulary, OverWhatIsRecomputedAndWhereStepsAreInterrupted) {
  const RunResult reference = Train(Job());
  for (const model::Recompute mode : {model::Recompute::kSelective, model::Recompute::kFull}) {
    SCOPED_TRACE(std::string(Name(mode)));
    config::JobSpec job = On(2, "zb-h1", Job());
    job.parallelism.recompute = {mode};
    ExpectSameBits(reference, Trained({.job = job, .stop_every = 1}));
  }
}

// There T is as it is elsewhere: only other Ws are merged.
TEST_F(SpreadVocabulary, ComputesWeightGradsOneByOneInJobsThatAreNotExactToo) {
  config::JobSpec job = Job();
  // Whole cache lines, so that neighbouring slots adjoin.
  job.model.hidden = job.model.context = job.model.positions = 16;
  job.model.heads = job.model.kv_heads = 4;
  job.model.inner = 64;
  job.steps = 1;
  job.validation.reset();
  const RunResult exact = Train(job);
  job.exact = false;
  const RunResult spread = TrainSpread(On(2, "zb-h2", job));
  ASSERT_EQ(spread.steps.size(), 1U);
  EXPECT_EQ(spread.steps[0].loss, exact.steps[0].loss);
  for (const auto& [name, gradient] : exact.gradients) {
    if (!name.ends_with("wte.weight")) continue;
    EXPECT_EQ(spread.gradients.at(name), gradient);
  }
}

}  // namespace
}  // namespace takt::numerics
