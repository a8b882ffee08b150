// SPDX-License-Identifier: Apache-2.0
#include "common/config/resumable.h"

#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/config/job_file.h"
#include "common/config/job_spec_serde.h"
#include "common/config/testing/job_text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "takt/v1/job_spec.pb.h"

namespace takt::config {
namespace {

constexpr char kJob[] = R"(
name: kjv
model: {family: gpt2, layers: 2, hidden: 8, heads: 2, context: 16, vocab: 64}
data: {train: {path: a.txt, format: bytes}}
batch: {global: 4, microbatch: 2}
optimizer: {adamw: {learning_rate: 1.0e-3}}
steps: 20
)";

v1::JobSpec KjvJob(std::vector<std::string> overrides) { return Parse(std::move(overrides), kJob); }

// before: the overrides of the job that wrote the checkpoint.
std::vector<std::string> DifferingFields(std::vector<std::string> overrides,
                                         std::vector<std::string> before = {}) {
  const JobSpec job = *ToJobSpec(KjvJob(std::move(overrides)));
  const std::string saved = FormatJobFile(ToProto(*ToJobSpec(KjvJob(std::move(before)))));
  std::vector<std::string> fields;
  for (const FieldError& error : FieldErrorsOf(CheckResumes(job, saved)))
    fields.push_back(error.field);
  return fields;
}

TEST(Resumable, WhatIsNoPartOfTheTrajectoryMayDiffer) {
  EXPECT_THAT(DifferingFields({}), testing::IsEmpty());
  EXPECT_THAT(DifferingFields(
                  {"name=other", "steps=40", "exact=false", "priority=70", "replan=at_checkpoint",
                   "parallelism={pipeline: 2, data: 2, vocabulary: spread}",
                   "checkpoint={directory: c, keep: 1}", "elastic.data={min: 1, max: 2}",
                   "data.validation={path: v.txt, format: bytes, every_steps: 5, batches: 1}"}),
              testing::IsEmpty());
}

TEST(Resumable, EverythingElseIsRefusedByName) {
  EXPECT_THAT(DifferingFields({"model.layers=3", "optimizer.adamw.beta2=0.9", "seed=7"}),
              testing::UnorderedElementsAre("model.layers", "optimizer.adamw.beta2", "seed"));
  EXPECT_THAT(DifferingFields({"batch.global=8"}), testing::ElementsAre("batch.global"));
  EXPECT_THAT(DifferingFields({"data.train.path=b.txt"}),
              testing::ElementsAre("data.train.0.path"));
  EXPECT_THAT(DifferingFields({"loss.z_loss=1e-4"}), testing::ElementsAre("loss.z_loss"));
  EXPECT_THAT(DifferingFields({"optimizer.groups={parameters: '*', weight_decay: 0}"}),
              testing::UnorderedElementsAre("optimizer.groups.0.parameters",
                                            "optimizer.groups.0.learning_rate_scale",
                                            "optimizer.groups.0.weight_decay"));
}

TEST(Resumable, ARateThatFallsUntilTheLastStepFollowsTheSteps) {
  for (const char* decay : {"cosine", "linear"}) {
    const std::string schedule = std::string("optimizer.lr_schedule.decay=") + decay;
    EXPECT_THAT(DifferingFields({schedule, "steps=30"}, {schedule}), testing::IsEmpty());
    EXPECT_THAT(DifferingFields({schedule, "steps=10"}, {schedule}), testing::IsEmpty());
    // It makes no difference who said so.
    EXPECT_THAT(
        DifferingFields({schedule, "steps=30"}, {schedule, "optimizer.lr_schedule.decay_steps=20"}),
        testing::IsEmpty());
    EXPECT_THAT(
        DifferingFields({schedule, "steps=30"}, {schedule, "optimizer.lr_schedule.decay_steps=15"}),
        testing::ElementsAre("optimizer.lr_schedule.decay_steps"));
    EXPECT_THAT(
        DifferingFields({schedule, "steps=30", "optimizer.lr_schedule.decay_steps=25"}, {schedule}),
        testing::ElementsAre("optimizer.lr_schedule.decay_steps"));
  }
  EXPECT_THAT(DifferingFields({"optimizer.lr_schedule.decay=linear", "steps=30"},
                              {"optimizer.lr_schedule.decay=cosine"}),
              testing::ElementsAre("optimizer.lr_schedule.decay"));
}

TEST(Resumable, WsdsPlateauFollowsTheSteps) {
  const std::string wsd =
      "optimizer.lr_schedule={decay: wsd, warmup_steps: 2, decay_steps: 5, stable_steps: 13}";
  const std::string open = "optimizer.lr_schedule={decay: wsd, warmup_steps: 2, decay_steps: 5}";
  EXPECT_THAT(DifferingFields({open, "steps=40"}, {open}), testing::IsEmpty());
  EXPECT_THAT(DifferingFields({open, "steps=40"}, {wsd}), testing::IsEmpty());
  EXPECT_THAT(DifferingFields({wsd, "steps=40"}, {open}), testing::IsEmpty());
  EXPECT_THAT(DifferingFields({open, "steps=40"}, {open, "steps=30"}), testing::IsEmpty());
  EXPECT_THAT(DifferingFields({wsd, "steps=40"}, {open, "steps=30"}),
              testing::ElementsAre("optimizer.lr_schedule.stable_steps"));
}

TEST(Resumable, AnotherOptimizerIsRefusedWithTheReason) {
  const JobSpec job = *ToJobSpec(KjvJob({"optimizer={lion: {}, lr_schedule: {warmup_steps: 2}}"}));
  const absl::Status status = CheckResumes(job, FormatJobFile(ToProto(*ToJobSpec(KjvJob({})))));
  const std::vector<FieldError> errors = FieldErrorsOf(status);
  ASSERT_EQ(errors.size(), 2u) << status;
  EXPECT_EQ(errors[0].ToString(),
            "optimizer is lion: the checkpoint is of a job with adamw, whose moments lion cannot "
            "use; use adamw again, or save to another checkpoint.directory and start from the "
            "weights by model.init_from");
  EXPECT_EQ(errors[1].field, "optimizer.lr_schedule.warmup_steps");
  const JobSpec sgd = *ToJobSpec(KjvJob({"optimizer={sgd: {momentum: 0}}"}));
  const std::string saved = FormatJobFile(ToProto(*ToJobSpec(KjvJob({"optimizer={sgd: {}}"}))));
  const std::vector<FieldError> momentum = FieldErrorsOf(CheckResumes(sgd, saved));
  ASSERT_EQ(momentum.size(), 1u);
  EXPECT_EQ(momentum[0].field, "optimizer.sgd.momentum");
}

TEST(Resumable, TheMessageSaysWhatItWas) {
  const JobSpec job = *ToJobSpec(KjvJob({"model.layers=3"}));
  const absl::Status status = CheckResumes(job, FormatJobFile(ToProto(*ToJobSpec(KjvJob({})))));
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("a job with 2"));
}

TEST(Resumable, AFieldThatIsLeftOutHasItsValue) {
  const auto error = [](std::vector<std::string> was, std::vector<std::string> is) {
    const std::string saved = FormatJobFile(ToProto(*ToJobSpec(KjvJob(std::move(was)))));
    return std::string(CheckResumes(*ToJobSpec(KjvJob(std::move(is))), saved).message());
  };
  EXPECT_THAT(error({"data.shuffle=true"}, {"data.shuffle=false"}),
              testing::StartsWith("data.shuffle is false: the checkpoint is of a job with true;"));
  EXPECT_THAT(error({}, {"data.shuffle=true"}),
              testing::StartsWith("data.shuffle is true: the checkpoint is of a job with false;"));
  EXPECT_THAT(error({"loss.z_loss=1e-4"}, {}), testing::StartsWith("loss.z_loss is 0: "));
  EXPECT_THAT(error({"data.document_end=3"}, {}),
              testing::HasSubstr("data.document_end is none: "));
}

TEST(Resumable, ASpecThatDoesNotReadIsNamed) {
  const JobSpec job = *ToJobSpec(KjvJob({}));
  EXPECT_THAT(std::string(CheckResumes(job, "{\"colour\": 3}").message()),
              testing::HasSubstr("job_spec"));
}

}  // namespace
}  // namespace takt::config
