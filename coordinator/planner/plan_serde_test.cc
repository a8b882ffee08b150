// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/plan_serde.h"

#include <memory>

#include "common/base/status.h"
#include "common/config/job_spec_serde.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "takt/v1/job_spec.pb.h"

namespace takt::planner {
namespace {

using ::testing::IsEmpty;
using ::testing::Not;

config::JobSpec JobOf(const std::string& schedule, int pipeline, int data) {
  v1::JobSpec proto;
  proto.set_name("j");
  v1::ModelSpec& model = *proto.mutable_model();
  model.set_family(v1::MODEL_FAMILY_GPT2);
  model.set_layers(6);
  model.set_hidden(32);
  model.set_heads(4);
  model.set_context(16);
  model.set_vocab(256);
  v1::DataSpec& data_spec = *proto.mutable_data();
  v1::CorpusSpec& corpus = *data_spec.add_train();
  corpus.set_path("/data/train.bin");
  corpus.set_format(v1::DATA_FORMAT_BYTES);
  data_spec.mutable_validation()->set_path("/data/validation.bin");
  data_spec.mutable_validation()->set_format(v1::DATA_FORMAT_BYTES);
  data_spec.mutable_validation()->set_every_steps(10);
  proto.mutable_batch()->set_global(16);
  proto.mutable_batch()->set_microbatch(1);
  proto.set_steps(4);
  proto.mutable_optimizer()->mutable_adamw()->set_clip_norm(0);  // as pipedream needs
  proto.mutable_parallelism()->set_schedule(schedule);
  proto.mutable_parallelism()->set_pipeline(pipeline);
  proto.mutable_parallelism()->set_data(data);
  absl::StatusOr<config::JobSpec> job = config::ToJobSpec(proto);
  EXPECT_TRUE(job.ok()) << job.status();
  return *std::move(job);
}

const plan::PlanOptions kOptions{.max_workers = 8,
                                 .device = config::DeviceKind::kCpu,
                                 .matmul_flops_per_second = 3e10,
                                 .worker_memory_bytes = std::int64_t{1} << 40};

TEST(PlanSerde, GivesBackEveryPartOfThePlan) {
  for (const char* schedule : {"1f1b", "zb-v", "dualpipe-v", "chimera", "pipedream-2bw", "auto"}) {
    SCOPED_TRACE(schedule);
    const config::JobSpec job = JobOf(schedule, 2, 2);
    absl::StatusOr<plan::Plan> plan = plan::MakePlan(job, kOptions);
    ASSERT_TRUE(plan.ok()) << plan.status();
    plan->costs.links[{PpRank(0), PpRank(1)}] = {.latency = 1e-5, .seconds_per_byte = 1e-9};
    plan->costs.optimizer = {1e-3, 2e-3};
    plan->warnings.push_back("a warning");
    plan->bucket_bytes = 1 << 20;
    plan->costs.halves_run_beside = false;
    plan->costs.terms = 3;
    plan->costs.chained_sums = true;
    plan->costs.pair_ratio = 0.9;
    const std::string bytes = FormatAnswer(*plan);
    const absl::StatusOr<plan::Plan> parsed = ParseAnswer(bytes, {job, kOptions});
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(FormatAnswer(*parsed), bytes);
    EXPECT_EQ(ToString(*parsed), ToString(*plan));
    EXPECT_EQ(parsed->model.num_parameters(), plan->model.num_parameters());
    EXPECT_EQ(parsed->model.FlopsPerMicrobatch(), plan->model.FlopsPerMicrobatch());
    EXPECT_THAT(parsed->validation_programs, Not(IsEmpty()));
    EXPECT_EQ(parsed->memory, plan->memory);
    EXPECT_EQ(parsed->costs, plan->costs);
    EXPECT_EQ(parsed->bucket_bytes, 1 << 20);
  }
}

TEST(PlanSerde, GivesBackWhoHasWhichWords) {
  config::JobSpec job = JobOf("1f1b", 2, 2);
  job.model.vocab = 20000;
  job.parallelism.vocabulary = config::Vocabulary::kSpread;
  const plan::Plan plan = plan::MakePlan(job, kOptions).value();
  ASSERT_EQ(plan.vocabulary_ends.size(), 2u);
  const std::string bytes = FormatAnswer(plan);
  const plan::Plan parsed = ParseAnswer(bytes, {job, kOptions}).value();
  EXPECT_EQ(FormatAnswer(parsed), bytes);
  EXPECT_EQ(parsed.vocabulary_ends, plan.vocabulary_ends);
  EXPECT_TRUE(parsed.schedule.spreads_vocabulary);
  EXPECT_EQ(parsed.costs.vocabulary_forward, plan.costs.vocabulary_forward);
}

TEST(PlanSerde, GivesBackWhatWasChosenForAuto) {
  config::JobSpec job = JobOf("1f1b", 2, 1);
  job.parallelism.data.reset();
  job.parallelism.data_auto = true;
  job.microbatch_auto = true;
  const PlanRequest request = ParseRequest(FormatRequest(job, kOptions)).value();
  EXPECT_TRUE(request.job.parallelism.data_auto && request.job.microbatch_auto);
  plan::Plan plan = plan::MakePlan(job, kOptions).value();
  plan.microbatch = 4;
  const plan::Plan parsed = ParseAnswer(FormatAnswer(plan), request).value();
  EXPECT_EQ(parsed.mesh.dp_size, plan.mesh.dp_size);
  EXPECT_EQ(parsed.microbatch, 4);
  EXPECT_EQ(parsed.model.microbatch, 4);
}

TEST(PlanSerde, RequestKeepsTheJobItsWarningsAndTheOptions) {
  config::JobSpec job = JobOf("zb-h1", 4, 1);
  job.warnings = {"no effect"};
  const absl::StatusOr<PlanRequest> parsed = ParseRequest(FormatRequest(job, kOptions));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->job.warnings, job.warnings);
  EXPECT_EQ(FormatRequest(parsed->job, parsed->options), FormatRequest(job, kOptions));
  EXPECT_EQ(parsed->options.matmul_flops_per_second, kOptions.matmul_flops_per_second);
  EXPECT_EQ(parsed->options.worker_memory_bytes, kOptions.worker_memory_bytes);
}

TEST(PlanSerde, RequestKeepsWhatWasMeasuredAndWhere) {
  const config::JobSpec job = JobOf("zb-h1", 4, 1);
  EXPECT_EQ(ParseRequest(FormatRequest(job, kOptions))->options.profile, nullptr);
  plan::PlanOptions options = kOptions;
  options.host = {.machine = "a processor", .threads = 12, .workers = 3, .free = 2};
  options.oldest_protocol = kSpreadProtocolVersion;
  options.clipped_share = 0.25;
  options.expert_imbalance = 1.125;
  auto measured = std::make_shared<profile::Profile>();
  measured->AddRank({.machine = "a processor"}, {.update_seconds = 1e-9});
  measured->AddSum({.num_ranks = 3}, 2e-10);
  options.profile = measured;
  const absl::StatusOr<PlanRequest> parsed = ParseRequest(FormatRequest(job, options));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(FormatRequest(parsed->job, parsed->options), FormatRequest(job, options));
  EXPECT_EQ(parsed->options.host.machine, "a processor");
  EXPECT_EQ(parsed->options.host.threads, 12);
  EXPECT_EQ(parsed->options.host.workers, 3);
  EXPECT_EQ(parsed->options.host.free, 2);
  EXPECT_EQ(parsed->options.oldest_protocol, kSpreadProtocolVersion);
  EXPECT_EQ(parsed->options.clipped_share, 0.25);
  EXPECT_EQ(parsed->options.expert_imbalance, 1.125);
  ASSERT_NE(parsed->options.profile, nullptr);
  EXPECT_EQ(parsed->options.profile->ranks().begin()->second.update_seconds, 1e-9);
  EXPECT_EQ(parsed->options.profile->sums().begin()->second, 2e-10);
}

TEST(PlanSerde, RefusalKeepsItsFields) {
  const config::JobSpec job = JobOf("1f1b", 2, 1);
  const absl::StatusOr<plan::Plan> refused = InvalidField(
      {.field = "parallelism.pipeline", .value = "7", .rule = "is too many", .fix = "use fewer"});
  const absl::Status parsed = ParseAnswer(FormatAnswer(refused), {job, kOptions}).status();
  EXPECT_EQ(parsed, refused.status());
  ASSERT_EQ(FieldErrorsOf(parsed).size(), 1u);
  EXPECT_EQ(FieldErrorsOf(parsed)[0].field, "parallelism.pipeline");
}

TEST(PlanSerde, BytesThatAreNoAnswerAreDataLoss) {
  const PlanRequest request{JobOf("1f1b", 2, 1), kOptions};
  EXPECT_TRUE(absl::IsDataLoss(ParseAnswer("", request).status()));
  EXPECT_TRUE(absl::IsDataLoss(ParseAnswer("\xff\xff", request).status()));
  EXPECT_TRUE(absl::IsDataLoss(ParseRequest("").status()));
}

}  // namespace
}  // namespace takt::planner
