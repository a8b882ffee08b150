// SPDX-License-Identifier: Apache-2.0
#include "common/config/elastic_field.h"

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
steps: 10
)";

v1::JobSpec ElasticJob(std::vector<std::string> overrides) {
  return Parse(std::move(overrides), kJob);
}

TEST(ElasticField, AJobKeepsItsSizeUnlessItSaysMore) {
  const JobSpec job = *ToJobSpec(ElasticJob({"parallelism={pipeline: 2, data: 3}"}));
  EXPECT_FALSE(job.elastic.Resizes());
  EXPECT_FALSE(job.LeavesSizeOpen());
  EXPECT_FALSE(job.WithOpenSizes().LeavesSizeOpen());
  EXPECT_EQ(job.LeastData(), 3);
  EXPECT_EQ(job.LeastPipeline(), 2);
  EXPECT_EQ(job.MostWorkers(), 6);
  EXPECT_FALSE(ToProto(job).has_elastic());  // for readers that do not know it
  EXPECT_EQ(ToJobSpec(ElasticJob({}))->MostWorkers(), std::nullopt);
}

TEST(ElasticField, SizesWithARangeAreOpenOnceTheJobHasBegun) {
  const JobSpec job = *ToJobSpec(ElasticJob({"parallelism={pipeline: 2, data: 3}",
                                             "elastic={data: {min: 5, max: 8}, pipeline: {min: 2, "
                                             "max: 4}, evict_stragglers: true}",
                                             "parallelism.data=6"}));
  EXPECT_EQ(job.elastic.data, (SizeRange{.min = 5, .max = 8}));
  EXPECT_EQ(job.elastic.pipeline, (SizeRange{.min = 2, .max = 4}));
  EXPECT_TRUE(job.elastic.evict_stragglers);
  EXPECT_FALSE(job.LeavesSizeOpen());
  EXPECT_EQ(ToJobSpec(ToProto(job))->elastic, job.elastic);
  const JobSpec open = job.WithOpenSizes();
  EXPECT_TRUE(open.LeavesSizeOpen());
  EXPECT_EQ(open.LeastData(), 6) << "5 divides no batch of 12 microbatches";
  EXPECT_EQ(open.LeastPipeline(), 2);
  EXPECT_EQ(open.MostWorkers(), 6 * 4) << "neither do 7 and 8";
}

TEST(ElasticField, OneAxisMayHaveARangeAlone) {
  const JobSpec job = *ToJobSpec(
      ElasticJob({"parallelism={pipeline: 3, data: 2}", "elastic.pipeline={min: 1, max: 3}"}));
  const JobSpec open = job.WithOpenSizes();
  EXPECT_EQ(open.parallelism.data, 2);
  EXPECT_EQ(open.parallelism.pipeline, std::nullopt);
  EXPECT_EQ(open.LeastPipeline(), 1);
  EXPECT_EQ(open.MostWorkers(), 6);
}

TEST(ElasticField, ARangeHasALeastAndAMost) {
  EXPECT_EQ(ErrorOf(ElasticJob({"elastic.data={min: 4, max: 2}"})),
            "elastic.data.min is 4: must be at most elastic.data.max (2); correct one of them");
  EXPECT_EQ(ErrorOf(ElasticJob({"elastic.pipeline={min: 0, max: 2}"})),
            "elastic.pipeline.min is 0 or missing: must be between 1 and 4096; set it");
  EXPECT_EQ(ErrorOf(ElasticJob({"elastic.pipeline={min: 2}"})),
            "elastic.pipeline.max is 0 or missing: must be between 1 and 4096; set it");
}

TEST(ElasticField, TheJobBeginsWithinItsRange) {
  EXPECT_EQ(ErrorOf(ElasticJob({"parallelism.data=4", "elastic.data={min: 1, max: 3}"})),
            "parallelism.data is 4: must be within elastic.data (1 to 3), since the job begins "
            "with it; change one of them, or leave it out: the plan chooses");
  EXPECT_THAT(ErrorOf(ElasticJob({"parallelism.pipeline=1", "elastic.pipeline={min: 2, max: 3}"})),
              HasSubstr("parallelism.pipeline is 1: must be within elastic.pipeline (2 to 3)"));
}

TEST(ElasticField, SomeNumberOfReplicasDividesTheBatch) {
  EXPECT_EQ(ErrorOf(ElasticJob({"elastic.data={min: 7, max: 11}"})),
            "elastic.data is 7 to 11: must have a number of replicas that divides batch.global / "
            "batch.microbatch = 12; use a range with one of its divisors, e.g. {min: 1, max: 12}");
  EXPECT_EQ(ErrorOf(ElasticJob({"elastic.data={min: 7, max: 12}"})), "");
}

TEST(ElasticField, TheLayersSufficeForTheSmallestPipeline) {
  EXPECT_THAT(ErrorOf(ElasticJob({"elastic.pipeline={min: 4, max: 8}", "parallelism.chunks=2"})),
              HasSubstr("elastic.pipeline.min is 4: x chunks (2) makes 8 stages; must be at most "
                        "model.layers + 2 (6)"));
  EXPECT_THAT(
      ErrorOf(ElasticJob(
          {"elastic.pipeline={min: 3, max: 3}", "parallelism.stage_layers=[1, 1, 1, 1]"})),
      HasSubstr("elastic.pipeline is 3 to 3: must have a number of ranks for the 4 stages"));
}

TEST(ElasticField, WhatCannotChangeIsRefused) {
  EXPECT_THAT(ErrorOf(ElasticJob({"checkpoint=null", "elastic.data={min: 1, max: 2}"})),
              HasSubstr("elastic: needs a checkpoint section"));
  v1::JobSpec from_file = ElasticJob({"elastic.pipeline={min: 1, max: 2}"});
  from_file.mutable_parallelism()->set_schedule("file:a.csv");
  from_file.mutable_parallelism()->set_schedule_csv("0F0");
  EXPECT_THAT(std::string(ToJobSpec(from_file).status().message()),
              HasSubstr("elastic.pipeline is 1 to 2: cannot be changed with a schedule's file"));
}

}  // namespace
}  // namespace takt::config
