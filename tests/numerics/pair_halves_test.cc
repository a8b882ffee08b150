// SPDX-License-Identifier: Apache-2.0
// Tests that the halves of pairs have the same bits whether they run side by side or one after the
// other, where ranks meet inside them.
#include <string>

#include "tests/numerics/bit_equality.h"

namespace takt::numerics {
namespace {

class PairHalves : public BitEquality {
 protected:
  config::JobSpec PairedJob(const char* schedule) const {
    config::JobSpec job = Job();
    job.model.layers = 6;
    job.model.hidden = 40;
    job.model.heads = job.model.kv_heads = 4;
    job.model.inner = 52;
    job.model.context = job.model.positions = 24;
    job.steps = 3;
    job.parallelism = {.pipeline = 2, .data = 1, .threads = 2, .schedule = schedule};
    return job;
  }

  static void ExpectSameBitsBeside(RunOptions options) {
    const RunResult beside = Trained(options);
    options.pairs_beside = false;
    ExpectSameBits(Trained(options), beside);
  }
};

TEST_F(PairHalves, OfLayersThatRanksSplit) {
  for (const bool gpt2 : {true, false}) {
    for (const model::Recompute mode : {model::Recompute::kNone, model::Recompute::kSelective}) {
      SCOPED_TRACE(std::string(gpt2 ? "gpt2 " : "llama ") + std::string(model::Name(mode)));
      config::JobSpec job = PairedJob("dualpipe-v");
      if (!gpt2) {
        job.model.family = model::Family::kLlama;
        job.model.kv_heads = 2;
        job.model.head_size = 10;
        job.model.tied_head = false;
      }
      job.parallelism.recompute = {mode};
      ExpectSameBitsBeside({.job = job, .tensor = {.size = 2, .leaves = 2}});
    }
  }
}

TEST_F(PairHalves, OfLayersThatRanksSplitInBf16) {
  config::JobSpec job = PairedJob("dualpipe-v");
  job.precision = config::Precision::kBf16;
  ExpectSameBitsBeside({.job = job, .tensor = {.size = 2, .leaves = 4}});
}

TEST_F(PairHalves, OfSequencesThatRanksShare) {
  config::JobSpec job = PairedJob("dualpipe-v");
  job.parallelism.context = 2;
  ExpectSameBitsBeside({.job = job});
}

// One schedule has two copies of the weights, and the other one has one.
TEST_F(PairHalves, OfBlocksWhoseExpertsRanksShare) {
  for (const char* const schedule : {"dualpipe", "dualpipe-v"}) {
    SCOPED_TRACE(schedule);
    config::JobSpec job = PairedJob(schedule);
    job.model = Mixtral(Job().model);
    job.model.layers = 6;
    job.model.mixture->experts = 8;
    job.model.mixture->chosen = 1;  // some rank gets more rows than the stash has room for
    job.global_batch = 24;
    job.parallelism.data = 2;
    job.parallelism.expert = 2;
    ExpectSameBitsBeside({.job = job});
  }
}

}  // namespace
}  // namespace takt::numerics
