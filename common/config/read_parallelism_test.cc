// SPDX-License-Identifier: Apache-2.0
#include "common/config/read_parallelism.h"

#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/config/job_spec_serde.h"
#include "common/config/testing/job_text.h"
#include "common/model/tensor_share.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "takt/v1/job_spec.pb.h"

namespace takt::config {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kJob[] = R"(
name: tiny
model: {family: llama, layers: 4, hidden: 96, heads: 12, kv_heads: 2, inner: 96, context: 48,
        vocab: 256}
data: {train: {path: a.txt, format: bytes}}
batch: {global: 8, microbatch: 2}
steps: 10
)";

v1::JobSpec LlamaJob(std::vector<std::string> overrides) {
  return Parse(std::move(overrides), kJob);
}

// Returns the errors of a job with these fields.
std::vector<std::string> ErrorsOf(std::vector<std::string> overrides) {
  std::vector<std::string> errors;
  for (const FieldError& error : FieldErrorsOf(ToJobSpec(LlamaJob(std::move(overrides))).status()))
    errors.push_back(error.ToString());
  return errors;
}

TEST(ReadParallelism, OneRankOnEachAxisIsTheDefault) {
  for (const JobSpec& job :
       {*ToJobSpec(LlamaJob({})), *ToJobSpec(LlamaJob({"parallelism={tensor: 1, context: 1}"}))}) {
    EXPECT_EQ(job.parallelism.tensor, 1);
    EXPECT_EQ(job.parallelism.context, 1);
    EXPECT_EQ(job.parallelism.RanksPerReplica(), 1);
    EXPECT_EQ(job.parallelism.shard, Shard::kAuto);
    // They are left out for readers that do not know them.
    const v1::ParallelismSpec proto = ToProto(job).parallelism();
    EXPECT_FALSE(proto.has_tensor() || proto.has_context() || proto.has_shard());
  }
}

TEST(ReadParallelism, ReplicasShareTheOptimizersStateOrNot) {
  for (const auto& [text, mode] :
       {std::pair("optimizer", Shard::kOptimizer), std::pair("none", Shard::kNone),
        std::pair("parameters", Shard::kParameters)}) {
    const JobSpec job = *ToJobSpec(LlamaJob({std::string("parallelism.shard=") + text}));
    EXPECT_EQ(job.parallelism.shard, mode);
    EXPECT_EQ(ToJobSpec(ToProto(job))->parallelism.shard, mode);
  }
}

TEST(ReadParallelism, RanksMayShareSequences) {
  const JobSpec job = *ToJobSpec(LlamaJob({"parallelism={data: 2, context: 3}"}));
  EXPECT_EQ(job.parallelism.context, 3);
  EXPECT_EQ(ToJobSpec(ToProto(job))->parallelism.context, 3);
  EXPECT_EQ(BuildModelOf(job, job.microbatch, DeviceKind::kCpu)->context_ranks, 3);
}

TEST(ReadParallelism, SharedWeightsAreFreedAtTimesOrNot) {
  for (const auto& [text, mode] :
       {std::pair("always", Reshard::kAlways), std::pair("never", Reshard::kNever)}) {
    const std::string set = "parallelism={shard: parameters, reshard_after_forward: ";
    const JobSpec job = *ToJobSpec(LlamaJob({set + text + "}"}));
    EXPECT_EQ(job.parallelism.reshard, mode);
    EXPECT_EQ(ToJobSpec(ToProto(job))->parallelism.reshard, mode);
  }
  EXPECT_THAT(ErrorsOf({"parallelism={shard: optimizer, reshard_after_forward: always}"}),
              ElementsAre("parallelism.reshard_after_forward is always: says when weights are "
                          "freed that replicas share, and only shard: parameters shares them; "
                          "remove it, or use shard: parameters"));
}

TEST(ReadParallelism, RanksShareLayersWithAsManyLeavesOrMore) {
  const JobSpec job = *ToJobSpec(LlamaJob({"parallelism={tensor: 2, tensor_leaves: 4}"}));
  EXPECT_EQ(job.parallelism.tensor, 2);
  EXPECT_EQ(job.parallelism.tensor_leaves, 4);
  EXPECT_EQ(ToJobSpec(ToProto(job))->parallelism.tensor_leaves, 4);
  EXPECT_EQ(BuildModelOf(job, job.microbatch, DeviceKind::kCpu)->tensor,
            (model::TensorShare{.size = 2, .index = 1, .leaves = 4}));
  const JobSpec open = *ToJobSpec(LlamaJob({"parallelism.tensor=auto"}));
  EXPECT_TRUE(open.parallelism.tensor_auto);
  EXPECT_EQ(open.parallelism.tensor, 1);
}

TEST(ReadParallelism, TensorRanksShareHeadsInnerAndContextEvenly) {
  constexpr char kFix[] = "; use one of 1, 2, 4";
  EXPECT_THAT(
      ErrorsOf({"parallelism.tensor=5"}),
      ElementsAre("parallelism.tensor is 5: must be a power of two" + std::string(kFix),
                  "parallelism.tensor is 5: must divide model.heads (12)" + std::string(kFix),
                  "parallelism.tensor is 5: must divide model.kv_heads (2) or be a "
                  "multiple of it" +
                      std::string(kFix),
                  "parallelism.tensor is 5: must divide model.inner (96)" + std::string(kFix),
                  "parallelism.tensor is 5: must divide model.context (48)" + std::string(kFix)));
  // Key and value heads are copied where there are more ranks than heads.
  EXPECT_THAT(ErrorsOf({"parallelism.tensor=12"}),
              ElementsAre("parallelism.tensor is 12: must be a power of two" + std::string(kFix)));
  EXPECT_THAT(ErrorsOf({"parallelism.tensor=4"}), IsEmpty());
  EXPECT_THAT(
      ErrorsOf({"model.inner=98", "parallelism.tensor=4"}),
      ElementsAre("parallelism.tensor is 4: must divide model.inner (98); use one of 1, 2"));
}

TEST(ReadParallelism, LeavesAreSharedEvenlyToo) {
  EXPECT_THAT(ErrorsOf({"parallelism.tensor_leaves=8"}),
              ElementsAre("parallelism.tensor_leaves is 8: must divide model.heads (12); use one "
                          "of 1, 2, 4"));
  EXPECT_THAT(
      ErrorsOf({"parallelism={tensor: 4, tensor_leaves: 2}"}),
      ElementsAre("parallelism.tensor is 4: must divide parallelism.tensor_leaves (2); change one "
                  "of them"));
}

TEST(ReadParallelism, RanksDoNotShareExpertsYet) {
  constexpr char kModel[] =
      "model={family: mixtral, layers: 4, hidden: 96, heads: 12, kv_heads: 2, inner: 96, "
      "context: 48, vocab: 256, experts: {count: 4, per_token: 2}}";
  EXPECT_THAT(ErrorsOf({kModel}), IsEmpty());
  EXPECT_THAT(ErrorsOf({kModel, "parallelism.tensor=2"}),
              ElementsAre("parallelism.tensor is 2: must be 1: ranks cannot share layers with "
                          "experts yet; use 1, and pipeline or data for more ranks"));
  EXPECT_THAT(ErrorsOf({kModel, "parallelism.tensor_leaves=2"}),
              ElementsAre(HasSubstr("parallelism.tensor_leaves is 2: must be 1")));
}

TEST(ReadParallelism, ContextRanksHaveTwoPiecesOfASequenceEach) {
  EXPECT_THAT(ErrorsOf({"parallelism.context=5"}),
              ElementsAre("parallelism.context is 5: makes 10 pieces of a sequence, 2 for each "
                          "rank; they must divide model.context (48); use one of 1, 2, 3, 4, 6, 8, "
                          "12, 24"));
  EXPECT_THAT(ErrorsOf({"parallelism={tensor: 4, context: 4}"}),
              ElementsAre("parallelism.context is 4: does not go with tensor and tensor_leaves "
                          "above 1 yet; use 1 for one of them"));
}

TEST(ReadParallelism, ReplicasShareExpertsEvenly) {
  constexpr char kMixtral[] =
      "model={family: mixtral, layers: 2, hidden: 48, heads: 4, context: 8, vocab: 9, inner: 40, "
      "experts: {count: 6, per_token: 2}}";
  EXPECT_THAT(ErrorsOf({kMixtral, "parallelism={data: 2, expert: 1}"}), IsEmpty());
  EXPECT_THAT(ErrorsOf({kMixtral, "parallelism={data: 2, expert: 2}"}), IsEmpty());
  EXPECT_THAT(ErrorsOf({kMixtral, "parallelism={data: auto, expert: 2}"}),
              ElementsAre("parallelism.expert is 2: must divide parallelism.data, which is auto; "
                          "name a number for parallelism.data"));
  EXPECT_THAT(ErrorsOf({kMixtral, "parallelism={expert: 2}"}),
              ElementsAre(HasSubstr("must divide parallelism.data (1)")));
  EXPECT_THAT(
      ErrorsOf({kMixtral, "parallelism={data: 2, expert: 2}", "batch={global: 8, microbatch: 1}",
                "elastic={data: {min: 2, max: 4}}", "checkpoint={in_memory: auto}"}),
      ElementsAre(HasSubstr("elastic.data is 2 to 4: cannot be changed where replicas share "
                            "experts")));
  EXPECT_THAT(ErrorsOf({kMixtral, "parallelism={data: 4, expert: 4}"}),
              ElementsAre("parallelism.expert is 4: must divide model.experts.count (6); correct "
                          "one of them"));
  EXPECT_THAT(ErrorsOf({kMixtral, "parallelism={data: 2, expert: 3}"}),
              ElementsAre("parallelism.expert is 3: must divide parallelism.data (2); correct one "
                          "of them"));
  EXPECT_THAT(ErrorsOf({"parallelism.expert=2"}),
              ElementsAre("parallelism.expert is 2: the model has no experts to share; remove it"));
}

TEST(ReadParallelism, SizesAreJudgedBeforeWhatTheyDivide) {
  EXPECT_THAT(
      ErrorsOf({"parallelism.tensor=0"}),
      ElementsAre("parallelism.tensor is 0 or missing: must be between 1 and 1024; set it"));
  EXPECT_THAT(ErrorsOf({"parallelism.context=-2"}),
              ElementsAre("parallelism.context is -2: must be between 1 and 4096; raise it"));
  EXPECT_THAT(ErrorsOf({"parallelism.data=5000"}),
              Contains("parallelism.data is 5000: must be between 1 and 4096; lower it"));
}

TEST(ReadParallelism, AMeshHasAtMostAMillionRanks) {
  EXPECT_THAT(
      ErrorsOf({"parallelism={pipeline: 1, data: 4096, context: 2048}"}),
      Contains("parallelism is 8388608 ranks: pipeline x data x context x tensor must be at "
               "most 1048576; lower one of them"));
}

TEST(ReadParallelism, ShardingIsRefusedWhereItCannotBe) {
  EXPECT_THAT(ErrorsOf({"parallelism.shard=gradients"}),
              ElementsAre(HasSubstr("it would save little, and earlier sums would change the bits "
                                    "of losses; use optimizer or parameters")));
  EXPECT_THAT(
      ErrorsOf({"parallelism={shard: optimizer, schedule: pipedream-2bw}"}),
      ElementsAre("parallelism.shard is optimizer: schedule pipedream-2bw keeps whole old weights; "
                  "use none, or a schedule that flushes"));
  v1::JobSpec file = LlamaJob({"parallelism={shard: parameters, schedule: file:a.csv}"});
  file.mutable_parallelism()->set_schedule_csv("0F0,0B0\n");
  EXPECT_THAT(std::string(ToJobSpec(file).status().message()),
              HasSubstr("a schedule's file does not say when weights are gathered"));
  v1::JobSpec hostile = LlamaJob({});
  hostile.mutable_parallelism()->set_shard(static_cast<v1::ShardMode>(77));
  EXPECT_EQ(std::string(ToJobSpec(hostile).status().message()),
            "parallelism.shard is 77: is not supported by this version; use none, optimizer or "
            "parameters");
}

TEST(ReadParallelism, MuonNeedsWholeMatricesOfAnyDevice) {
  EXPECT_THAT(ErrorsOf({"optimizer={muon: {}}", "parallelism={shard: optimizer}"}),
              ElementsAre("parallelism.shard is optimizer: cuts the matrices, which optimizer.muon "
                          "updates as wholes; use none, or another optimizer"));
  EXPECT_THAT(
      ErrorsOf({"optimizer={muon: {}}", "parallelism={tensor: 2}"}),
      testing::Contains("parallelism.tensor is 2: splits the matrices, which optimizer.muon "
                        "updates as wholes; use 1, or another optimizer"));
  EXPECT_THAT(ErrorsOf({"optimizer={muon: {}}", "parallelism={tensor_leaves: 2}"}),
              ElementsAre("parallelism.tensor_leaves is 2: splits the matrices, which "
                          "optimizer.muon updates as wholes; use 1, or another optimizer"));
  EXPECT_THAT(ErrorsOf({"optimizer={muon: {}}", "parallelism={device: cuda, transport: nccl}"}),
              IsEmpty());
}

TEST(ReadParallelism, AnEmulatedModelHasNothingThatASizeMustDivide) {
  constexpr char kModel[] = "model={family: emulated, layers: 3, activation_bytes: 9}";
  EXPECT_THAT(ErrorsOf({kModel, "parallelism={tensor: 5}"}), IsEmpty());
  EXPECT_THAT(ErrorsOf({kModel, "parallelism={tensor: 2, tensor_leaves: 4}"}),
              ElementsAre("parallelism.tensor_leaves is 4: emulated layers compute no sums; "
                          "remove it"));
  EXPECT_THAT(ErrorsOf({kModel, "parallelism={context: 5}"}),
              ElementsAre("parallelism.context is 5: emulated layers have no sequences to share; "
                          "use 1"));
}

}  // namespace
}  // namespace takt::config
