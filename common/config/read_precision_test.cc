// SPDX-License-Identifier: Apache-2.0
#include "common/config/read_precision.h"

#include "common/config/job_file.h"
#include "common/config/job_spec_serde.h"
#include "common/config/resumable.h"
#include "common/config/testing/job_text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "takt/v1/job_spec.pb.h"

namespace takt::config {
namespace {

using ::testing::HasSubstr;

TEST(ReadPrecision, Fp8IsBf16WithARecipe) {
  EXPECT_EQ(ToJobSpec(Parse({"precision=bf16"}))->fp8, model::Fp8Recipe::kNone);
  const JobSpec tensor = *ToJobSpec(Parse({"precision=fp8"}));
  EXPECT_EQ(tensor.precision, Precision::kBf16);
  EXPECT_EQ(tensor.fp8, model::Fp8Recipe::kTensor);
  const JobSpec block = *ToJobSpec(Parse({"precision=fp8", "fp8={recipe: block}"}));
  EXPECT_EQ(block.fp8, model::Fp8Recipe::kBlock);
  for (const JobSpec& job : {tensor, block}) {
    EXPECT_EQ(ToProto(job).precision(), v1::PRECISION_FP8);
    const JobSpec again = *ToJobSpec(ToProto(job));
    EXPECT_EQ(again.precision, job.precision);
    EXPECT_EQ(again.fp8, job.fp8);
    const model::Precisions precisions = PrecisionsOf(job, DeviceKind::kCpu);
    EXPECT_EQ(precisions.products, Precision::kBf16);
    EXPECT_EQ(precisions.activations, Precision::kF32);
    EXPECT_EQ(precisions.fp8, job.fp8);
  }
}

TEST(ReadPrecision, RefusesWhatDoesNotGoWithFp8) {
  EXPECT_TRUE(
      ToJobSpec(Parse({"precision=fp8", "parallelism={device: cuda, transport: nccl}"})).ok());
  EXPECT_EQ(ErrorOf(Parse({"precision=fp8", "exact=false"})),
            "exact is false: does not go with precision: fp8, as the gradients of several "
            "microbatches would share scales; remove it, or use precision: bf16");
  EXPECT_THAT(ErrorOf(Parse({"precision=fp8", "parallelism.tensor=2"})),
              HasSubstr("parallelism.tensor is 2: does not go with precision: fp8"));
  EXPECT_THAT(ErrorOf(Parse({"precision=fp8", "parallelism.context=2"})),
              HasSubstr("parallelism.context is 2: does not go with precision: fp8"));
  EXPECT_THAT(ErrorOf(Parse({"precision=bf16", "fp8={recipe: block}"})),
              HasSubstr("is for precision: fp8 alone"));
}

TEST(ReadPrecision, RefusesNumbersWithoutAName) {
  v1::JobSpec spec = Parse({"precision=fp8"});
  spec.mutable_fp8()->set_recipe(static_cast<v1::Fp8Recipe>(7));
  EXPECT_THAT(ToJobSpec(spec).status().message(), HasSubstr("fp8.recipe is 7"));
}

TEST(ReadPrecision, AnEmulatedModelWarns) {
  const JobSpec job = *ToJobSpec(
      Parse({"precision=fp8", "model={family: emulated, layers: 3, activation_bytes: 9}"}));
  EXPECT_EQ(job.fp8, model::Fp8Recipe::kNone);
  EXPECT_THAT(job.warnings, testing::Contains(HasSubstr("precision: has no effect")));
}

TEST(ReadPrecision, RefusesAMixtureOfExpertsInFp8) {
  const char* const kMixture =
      "model={family: mixtral, layers: 2, hidden: 16, heads: 2, kv_heads: 1, inner: 32, "
      "context: 16, vocab: 256, experts: {count: 4, per_token: 2}}";
  EXPECT_TRUE(ToJobSpec(Parse({"precision=bf16", kMixture})).ok());
  EXPECT_EQ(ErrorOf(Parse({"precision=fp8", kMixture})),
            "precision is fp8: does not go with a mixture of experts; use precision: bf16");
}

// The moments would go on with gradients of another rounding.
TEST(ReadPrecision, ACheckpointKeepsItsRecipe) {
  const JobSpec tensor = *ToJobSpec(Parse({"precision=fp8"}));
  const JobSpec block = *ToJobSpec(Parse({"precision=fp8", "fp8={recipe: block}"}));
  EXPECT_TRUE(CheckResumes(tensor, FormatJobFile(ToProto(tensor))).ok());
  EXPECT_THAT(CheckResumes(block, FormatJobFile(ToProto(tensor))).message(),
              HasSubstr("fp8.recipe"));
}

TEST(ReadPrecision, ResidualIsF32UnlessTheJobSaysOtherwise) {
  EXPECT_EQ(ToJobSpec(Parse({"precision=bf16"}))->residual, Precision::kF32);
  EXPECT_EQ(ToJobSpec(Parse({"residual=f32"}))->residual, Precision::kF32);
  for (const char* precision : {"precision=bf16", "precision=fp8"}) {
    const JobSpec job = *ToJobSpec(Parse({precision, "residual=bf16"}));
    EXPECT_EQ(job.residual, Precision::kBf16);
    EXPECT_EQ(PrecisionsOf(job, DeviceKind::kCpu).residual, Precision::kBf16);
    EXPECT_EQ(ToJobSpec(ToProto(job))->residual, Precision::kBf16);
    EXPECT_THAT(CheckResumes(job, FormatJobFile(ToProto(*ToJobSpec(Parse({precision}))))).message(),
                HasSubstr("residual"));
  }
}

TEST(ReadPrecision, RefusesWhatDoesNotGoWithAResidualInBf16) {
  EXPECT_EQ(ErrorOf(Parse({"residual=bf16"})),
            "residual is bf16: does not go with precision: f32, whose products would read less "
            "than they can use; set precision: bf16 or fp8, or residual: f32");
  EXPECT_THAT(ErrorOf(Parse({"precision=bf16", "residual=bf16", "parallelism.vocabulary=spread"})),
              HasSubstr("residual is bf16: does not go with parallelism.vocabulary: spread"));
  EXPECT_FALSE(ParseJobFile(kTinyJob, {.overrides = {"residual=fp8"}}).ok());
  const JobSpec job = *ToJobSpec(
      Parse({"residual=bf16", "model={family: emulated, layers: 3, activation_bytes: 9}"}));
  EXPECT_EQ(job.residual, Precision::kF32);
  EXPECT_THAT(job.warnings, testing::Contains(HasSubstr("residual: has no effect")));
}

}  // namespace
}  // namespace takt::config
