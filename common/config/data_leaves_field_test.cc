// SPDX-License-Identifier: Apache-2.0
#include "common/config/data_leaves_field.h"

#include <string>
#include <utility>
#include <vector>

#include "common/config/job_spec_serde.h"
#include "common/config/testing/job_text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "takt/v1/job_spec.pb.h"

namespace takt::config {
namespace {

using ::testing::HasSubstr;

constexpr char kJob[] = R"(
name: tiny
model: {family: gpt2, layers: 4, hidden: 64, heads: 4, context: 32, vocab: 256}
data: {train: {path: a.txt, format: bytes}}
batch: {global: 24, microbatch: 2}
checkpoint: {in_memory: auto}
parallelism: {data_leaves: 6}
steps: 10
)";

absl::StatusOr<JobSpec> Job(std::vector<std::string> overrides) {
  return ToJobSpec(Parse(std::move(overrides), kJob));
}

std::string Refusal(std::vector<std::string> overrides) {
  const absl::StatusOr<JobSpec> job = Job(std::move(overrides));
  return job.ok() ? "" : std::string(job.status().message());
}

TEST(DataLeavesField, ReplicasHaveEquallyMany) {
  const JobSpec job = *Job({"elastic={data: {min: 2, max: 5}}"});
  EXPECT_EQ(job.parallelism.data_leaves, 6);
  EXPECT_EQ(job.parallelism.LeavesPerReplica(3), 2);
  EXPECT_EQ(JobSpec().parallelism.LeavesPerReplica(3), 1) << "without the field";
  EXPECT_EQ(ToJobSpec(ToProto(job))->parallelism.data_leaves, 6);
  EXPECT_TRUE(job.DividesBatch(3));
  EXPECT_FALSE(job.DividesBatch(4)) << "as it would without leaves";
  EXPECT_EQ(job.LeastData(), 2);
  EXPECT_EQ(Job({"elastic={data: {min: 2, max: 5}}", "parallelism.pipeline=2"})->MostWorkers(), 6);
}

TEST(DataLeavesField, RefusesWhatDoesNotDivide) {
  EXPECT_THAT(
      Refusal({"parallelism.data=4"}),
      HasSubstr("parallelism.data_leaves is 6: must be a multiple of parallelism.data (4)"));
  EXPECT_THAT(Refusal({"parallelism.data_leaves=5"}),
              HasSubstr("batch.global is 24: must be divisible by batch.microbatch x "
                        "parallelism.data_leaves = 10"));
  EXPECT_THAT(Refusal({"elastic={data: {min: 4, max: 5}}"}),
              HasSubstr("elastic.data is 4 to 5: must have a number of replicas that divides "
                        "parallelism.data_leaves (6)"));
  EXPECT_THAT(Refusal({"parallelism.data_leaves=0"}), HasSubstr("parallelism.data_leaves is 0"));
  EXPECT_THAT(Refusal({"parallelism.data_leaves=1000000"}), HasSubstr("parallelism.data_leaves"));
  EXPECT_EQ(Refusal({"batch.microbatch=auto"}), "");
}

TEST(DataLeavesField, RefusesWhatHasOtherTerms) {
  EXPECT_THAT(Refusal({"parallelism.context=2"}),
              HasSubstr("does not go with parallelism.context"));
  EXPECT_THAT(Refusal({"parallelism.vocabulary=spread"}),
              HasSubstr("does not go with vocabulary: spread"));
  EXPECT_THAT(Refusal({"exact=false"}), HasSubstr("which exact: false leaves open"));
}

}  // namespace
}  // namespace takt::config
