// SPDX-License-Identifier: Apache-2.0
#include "common/profile/learn.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/direct_ranks.h"
#include "common/config/testing/jobs.h"
#include "common/model/vocabulary.h"
#include "common/plan/plan.h"
#include "common/profile/probe.h"
#include "common/trace/testing/synthetic_trace.h"
#include "gmock/gmock.h"

namespace takt::profile {
namespace {

using program::Op;
using ::testing::DoubleNear;
using ::testing::SizeIs;

const Conditions kHere = {.machine = "a processor", .threads = 1, .ranks_per_host = 2};

config::JobSpec Job() {
  config::JobSpec job = config::SmallGpt2Job();
  job.model.layers = 4;
  job.model.vocab = 100;
  job.global_batch = 8;
  job.microbatch = 1;
  job.parallelism.pipeline = 2;
  job.parallelism.schedule = "1f1b";
  return job;
}

plan::Plan PlanOf(const config::JobSpec& job, int workers = 2) {
  return plan::MakePlan(job, {.max_workers = workers}).value();
}

// Makes all passes of one kind on a stage take so long.
void Set(trace::SyntheticTrace& synthetic, StageId stage, Op op, double seconds) {
  for (std::size_t rank = 0; rank < synthetic.spread().size(); ++rank) {
    const program::Program& program = synthetic.spread()[rank];
    for (const program::Instruction& instruction : program.body) {
      if (instruction.op != op || instruction.stage != stage) continue;
      synthetic.Duration(static_cast<int>(rank), ToString(instruction, program)) = seconds;
    }
  }
}

// hosts: of the ranks; empty: one host has all of them.
Profile LearnFrom(const plan::Plan& plan, trace::SyntheticTrace& synthetic, Profile profile = {},
                  double weight = 1, const std::vector<std::string>& hosts = {}) {
  std::vector<RankPlace> places(plan.mesh.size(), {.conditions = kHere, .host = "host"});
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) places[rank].host = hosts[rank];
  const absl::Status status = Learn(synthetic.Get(),
                                    {.model = plan.model,
                                     .partition = plan.partition,
                                     .places = places,
                                     .vocabulary_ends = plan.vocabulary_ends},
                                    weight, profile);
  EXPECT_TRUE(status.ok()) << status;
  return profile;
}

Passes SecondsOf(const Profile& profile, const plan::Plan& plan, int layer) {
  const LayerShape shape = ShapeOf(plan.model, plan.model.layers[layer], model::Recompute::kNone);
  const auto found = profile.layers().find({shape, kHere});
  EXPECT_TRUE(found != profile.layers().end()) << ToString(shape);
  return found == profile.layers().end() ? Passes() : found->second.seconds;
}

TEST(Learn, TellsTheLayersOfAProbeApart) {
  const plan::Plan plan = PlanOf(ProbeJob(Job(), {.num_ranks = 2}));
  trace::SyntheticTrace synthetic(plan.programs, {.dp_size = 2});
  Set(synthetic, StageId(0), Op::kForward, 0.001);
  Set(synthetic, StageId(1), Op::kForward, 0.008);
  Set(synthetic, StageId(1), Op::kInputGrad, 0.010);
  Set(synthetic, StageId(1), Op::kWeightGrad, 0.006);
  Set(synthetic, StageId(2), Op::kWeightGrad, 0.020);
  const Profile profile = LearnFrom(plan, synthetic);
  EXPECT_THAT(profile.layers(), SizeIs(3));
  EXPECT_THAT(SecondsOf(profile, plan, 0).forward, DoubleNear(0.001, 1e-8));
  // There are two blocks.
  const Passes block = SecondsOf(profile, plan, 1);
  EXPECT_THAT(block.forward, DoubleNear(0.004, 1e-8));
  EXPECT_THAT(block.input_grad, DoubleNear(0.005, 1e-8));
  EXPECT_THAT(block.weight_grad, DoubleNear(0.003, 1e-8));
  EXPECT_THAT(SecondsOf(profile, plan, 3).weight_grad, DoubleNear(0.020, 1e-8));
}

// What a layer takes does not depend on the pass that computes it.
TEST(Learn, CountsTheForwardOfASlicedHeadThatIsInB) {
  const plan::Plan plan = PlanOf(Job());
  plan::Plan sliced = plan;
  sliced.model.head_slice = 8;
  const mesh::Stage& last = plan.partition.back();
  const double head = plan.model.layers.back().cost.forward_flops;
  double backward = 0;
  for (LayerId id = last.first_layer; id < last.last_layer; ++id) {
    const model::LayerCost& cost = plan.model.layers[id.value()].cost;
    backward += cost.input_grad_flops + cost.weight_grad_flops;
  }
  const double share = head / (head + backward);
  const auto learned = [&](const plan::Plan& run, double f, double b) {
    trace::SyntheticTrace synthetic(run.programs, {});
    Set(synthetic, last.id, Op::kForward, f);
    Set(synthetic, last.id, Op::kBackward, b);
    return LearnFrom(run, synthetic);
  };
  const Profile of_slices = learned(sliced, 0.004, 0.020);
  const Profile of_whole = learned(plan, 0.004 + share * 0.020, (1 - share) * 0.020);
  for (LayerId id = last.first_layer; id < last.last_layer; ++id) {
    const Passes expected = SecondsOf(of_whole, plan, id.value());
    const Passes seconds = SecondsOf(of_slices, plan, id.value());
    EXPECT_GT(seconds.forward, 0);
    EXPECT_THAT(seconds.forward, DoubleNear(expected.forward, 1e-7));
    EXPECT_THAT(seconds.input_grad, DoubleNear(expected.input_grad, 1e-7));
    EXPECT_THAT(seconds.weight_grad, DoubleNear(expected.weight_grad, 1e-7));
  }
}

TEST(Learn, ReadsUpdatesAndSums) {
  const plan::Plan plan = PlanOf(ProbeJob(Job(), {.num_ranks = 2}));
  trace::SyntheticTrace synthetic(plan.programs, {.dp_size = 2, .norm = 0.003, .optimizer = 0.007});
  const Profile profile = LearnFrom(plan, synthetic);
  const auto parameters = static_cast<double>(plan.model.num_parameters());
  EXPECT_THAT(profile.FindRank(kHere)->update_seconds, DoubleNear(0.010 / parameters, 1e-11));
  ASSERT_THAT(profile.sums(), SizeIs(1));
  // Four layers are summed in 200 us each. The table of tokens has a gradient in the embedding and
  // one in the head.
  const double seconds_of_byte = 4 * 200e-6 / (sizeof(float) * (parameters + 100 * 64));
  EXPECT_THAT(profile.FindSum({.same_host = true, .num_ranks = 2}).value(),
              DoubleNear(seconds_of_byte, 0.01 * seconds_of_byte));
}

TEST(Learn, ComparesPairsWithTheirPassesAlone) {
  config::JobSpec job = Job();
  job.parallelism.schedule = "dualpipe-v";
  job.parallelism.tensor = 2;
  const plan::Plan plan = PlanOf(job, 4);
  for (const double factor : {1.0, 0.9}) {
    trace::SyntheticTrace synthetic(plan.programs, {.tp_size = 2});
    for (int rank = 0; rank < 4; ++rank) synthetic.Slow(rank, Op::kOverlap, factor);
    EXPECT_THAT(LearnFrom(plan, synthetic).FindPair(kHere).value(), DoubleNear(factor, 1e-5));
  }
  // Without meetings the halves follow one another, which says nothing about such pairs.
  job.parallelism.tensor = 1;
  const plan::Plan apart = PlanOf(job);
  trace::SyntheticTrace synthetic(apart.programs, {});
  EXPECT_FALSE(LearnFrom(apart, synthetic).FindPair(kHere).has_value());
}

// Each of n replicas updates its share, and the gather is the second half of a sum. Nine are a
// chain, whose scatter takes as long as a whole sum.
TEST(Learn, ReadsUpdatesAndSumsOfReplicasThatShare) {
  struct Case {
    int replicas;
    double sums;  // that scatter and gather take as long as
  };
  for (const auto [replicas, sums] : {Case{2, 1}, Case{kMostDirectRanks + 1, 1.5}}) {
    SCOPED_TRACE(replicas);
    config::JobSpec job = ProbeJob(Job(), {.num_ranks = replicas});
    job.parallelism.shard = config::Shard::kOptimizer;
    job.global_batch = 4 * replicas;
    const plan::Plan plan = PlanOf(job, replicas);
    ASSERT_TRUE(plan::SharesOptimizer(plan));
    const auto parameters = static_cast<double>(plan.model.num_parameters());
    trace::SyntheticTrace synthetic(plan.programs,
                                    {.dp_size = replicas, .norm = 0.003, .optimizer = 0.007});
    const Profile profile = LearnFrom(plan, synthetic);
    EXPECT_THAT(profile.FindRank(kHere)->update_seconds,
                DoubleNear(replicas * 0.010 / parameters, 1e-11));
    const double seconds_of_byte =
        2 * 4 * 200e-6 / sums / (sizeof(float) * (parameters + 100 * 64));
    EXPECT_THAT(profile.FindSum({.same_host = true, .num_ranks = replicas}).value(),
                DoubleNear(seconds_of_byte, 0.01 * seconds_of_byte));
  }
}

TEST(Learn, CountsTheCopyOfATiedTableAmongWhatItsRankUpdates) {
  config::JobSpec job = Job();
  job.parallelism.stage_layers = {4, 0};
  const plan::Plan plan = PlanOf(job);
  trace::SyntheticTrace synthetic(plan.programs, {.norm = 0.003, .optimizer = 0.007});
  const Profile profile = LearnFrom(plan, synthetic);
  // The last rank updates least in the same time: the table of tokens, and the head's norm.
  EXPECT_THAT(profile.FindRank(kHere)->update_seconds,
              DoubleNear(0.010 / (100 * 64 + 2 * 64), 1e-11));
}

TEST(Learn, ReadsWhatWordsTakeAndGivesTheRestOfAStageToItsBlocks) {
  config::JobSpec job = Job();
  job.model.vocab = 3 * model::kVocabularyBlock;
  job.parallelism.vocabulary = config::Vocabulary::kSpread;
  job.parallelism.stage_layers = {1, 3};
  const plan::Plan plan = PlanOf(job);
  ASSERT_THAT(plan.vocabulary_ends, SizeIs(2));
  trace::SyntheticTrace synthetic(plan.programs, {.norm = 0.003, .optimizer = 0.007});
  Set(synthetic, StageId(0), Op::kForward, 0.004);
  Set(synthetic, StageId(1), Op::kForward, 0.012);
  Set(synthetic, StageId(2), Op::kVocabularyForward, 0.006);
  Set(synthetic, StageId(2), Op::kVocabularyBackward, 0.011);
  const Profile profile = LearnFrom(plan, synthetic);
  EXPECT_THAT(SecondsOf(profile, plan, 1).forward, DoubleNear(0.004, 1e-8));
  for (PpRank rank(0); rank.value() < 2; ++rank) {
    const std::int64_t words = mesh::WordsOf(plan.vocabulary_ends, rank, job.model.vocab).words;
    ASSERT_GT(words, 0);
    const auto found = profile.layers().find({ShapeOfWords(plan.model, words), kHere});
    ASSERT_TRUE(found != profile.layers().end()) << words;
    EXPECT_THAT(found->second.seconds.forward, DoubleNear(0.006, 1e-8));
    EXPECT_THAT(found->second.seconds.input_grad, DoubleNear(0.011, 1e-8));
    EXPECT_EQ(found->second.seconds.weight_grad, 0);
  }
  // One shape of blocks, and one or two numbers of words; neither embedding nor head.
  for (const auto& [key, sample] : profile.layers())
    EXPECT_TRUE(key.first.spread || key.first.heads > 0) << ToString(key.first);
}

TEST(Learn, DividesAStageByWhatIsKnown) {
  const plan::Plan plan = PlanOf(Job());
  trace::SyntheticTrace probe(PlanOf(ProbeJob(Job(), {.num_ranks = 2})).programs, {.dp_size = 2});
  Set(probe, StageId(0), Op::kForward, 0.001);
  Set(probe, StageId(1), Op::kForward, 0.004);
  Set(probe, StageId(2), Op::kForward, 0.002);
  const Profile known = LearnFrom(PlanOf(ProbeJob(Job(), {.num_ranks = 2})), probe);

  // Of what the probe says, the first stage takes twice and the last stage three times as much.
  const int blocks = plan.partition[0].last_layer.value() - 1;
  trace::SyntheticTrace real(plan.programs, {});
  Set(real, StageId(0), Op::kForward, 2 * (0.001 + 0.002 * blocks));
  Set(real, StageId(1), Op::kForward, 3 * (0.002 + 0.002 * (4 - blocks)));
  const Profile profile = LearnFrom(plan, real, known);
  EXPECT_THAT(SecondsOf(profile, plan, 0).forward, DoubleNear(0.002, 1e-7));
  EXPECT_THAT(SecondsOf(profile, plan, 1).forward, DoubleNear(0.005, 1e-7));  // (2 + 3) / 2 times
  EXPECT_THAT(SecondsOf(profile, plan, 5).forward, DoubleNear(0.006, 1e-7));
}

TEST(Learn, GivesTheHeadWhatTheBlocksOfItsStageLeaveOnTheMean) {
  config::JobSpec job = Job();
  job.model.layers = 5;
  job.parallelism.pipeline = 4;
  job.parallelism.stage_layers = {0, 2, 2, 1};
  const plan::Plan plan = PlanOf(job);
  trace::SyntheticTrace synthetic(plan.programs, {});
  Set(synthetic, StageId(1), Op::kForward, 2 * 0.002);
  Set(synthetic, StageId(2), Op::kForward, 2 * 0.004);
  Set(synthetic, StageId(3), Op::kForward, 0.003 + 0.005);
  const Profile profile = LearnFrom(plan, synthetic);
  EXPECT_THAT(SecondsOf(profile, plan, 1).forward, DoubleNear(0.003, 1e-7));
  EXPECT_THAT(SecondsOf(profile, plan, 6).forward, DoubleNear(0.005, 1e-7));
}

TEST(Learn, DividesABackwardByItsWork) {
  config::JobSpec job = Job();
  job.parallelism.pipeline = 3;
  job.parallelism.stage_layers = {0, 4, 0};
  const plan::Plan plan = PlanOf(job);
  trace::SyntheticTrace synthetic(plan.programs, {});
  Set(synthetic, StageId(1), Op::kBackward, 4 * 0.010);
  const Profile profile = LearnFrom(plan, synthetic);
  const Passes block = SecondsOf(profile, plan, 1);
  const Passes work = WorkOf(plan.model.layers[1], model::Recompute::kNone);
  EXPECT_THAT(block.input_grad + block.weight_grad, DoubleNear(0.010, 1e-7));
  EXPECT_THAT(block.input_grad / block.weight_grad,
              DoubleNear(work.input_grad / work.weight_grad, 1e-6));
}

TEST(Learn, MixesWithWhatIsKnown) {
  const plan::Plan plan = PlanOf(ProbeJob(Job(), {.num_ranks = 2}));
  trace::SyntheticTrace first(plan.programs, {.dp_size = 2, .forward = 0.010});
  trace::SyntheticTrace second(plan.programs, {.dp_size = 2, .forward = 0.020});
  const Profile profile = LearnFrom(plan, second, LearnFrom(plan, first), 0.2);
  EXPECT_THAT(SecondsOf(profile, plan, 0).forward, DoubleNear(0.012, 1e-7));
}

TEST(Learn, TakesOneSlowStepForAnAccident) {
  const plan::Plan plan = PlanOf(ProbeJob(Job(), {.num_ranks = 2}));
  trace::SyntheticTrace synthetic(plan.programs, {.dp_size = 2, .num_steps = 5});
  synthetic.AddStep();
  synthetic.Slow(0, Op::kForward, 100);
  synthetic.AddStep();
  synthetic.Slow(0, Op::kForward, 0.01);
  const Profile profile = LearnFrom(plan, synthetic);
  EXPECT_THAT(SecondsOf(profile, plan, 0).forward, DoubleNear(0.010, 1e-6));
}

TEST(Learn, TakesOnlyMessagesOfEmulatedJobs) {
  config::JobSpec job = Job();
  job.model = {.family = model::Family::kEmulated,
               .layers = 2,
               .forward_seconds = 1e-3,
               .input_grad_seconds = 1e-3,
               .weight_grad_seconds = 1e-3,
               .activation_bytes = 5000};
  const plan::Plan plan = PlanOf(job);
  trace::SyntheticTrace synthetic(plan.programs, {.message = 70e-6});
  const Profile profile = LearnFrom(plan, synthetic);
  EXPECT_THAT(profile.layers(), SizeIs(0));
  EXPECT_THAT(profile.ranks(), SizeIs(0));
  ASSERT_THAT(profile.messages(), SizeIs(1));
  EXPECT_THAT(profile.FindMessage(true, 5000).value(), DoubleNear(70e-6, 1e-7));
}

TEST(Learn, KeepsMessagesBetweenHostsByTheTwoHosts) {
  config::JobSpec job = Job();
  job.parallelism.pipeline = 3;
  const plan::Plan plan = PlanOf(job);
  trace::SyntheticTrace synthetic(plan.programs, {.message = 50e-6});
  synthetic.Delay(1, 2, 100e-6);
  // The first two ranks share a host.
  const Profile profile = LearnFrom(plan, synthetic, {}, 1, {"a", "a", "b"});
  const std::int64_t bytes = plan.model.layers.front().cost.output_bytes;
  ASSERT_THAT(profile.links(), SizeIs(2));
  EXPECT_THAT(profile.links().at(KeyOfLink("a", "b", bytes)).seconds, DoubleNear(150e-6, 1e-7));
  EXPECT_THAT(profile.links().at(KeyOfLink("b", "a", bytes)).seconds, DoubleNear(50e-6, 1e-7));
  EXPECT_THAT(profile.FindMessage(true, bytes).value(), DoubleNear(50e-6, 1e-7));
}

}  // namespace
}  // namespace takt::profile
