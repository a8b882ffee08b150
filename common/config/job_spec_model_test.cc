// SPDX-License-Identifier: Apache-2.0
// Tests what jobs say of their models and documents.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/config/job_file.h"
#include "common/config/job_spec_serde.h"
#include "common/config/testing/job_text.h"
#include "common/model/mixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "takt/v1/job_spec.pb.h"

namespace takt::config {
namespace {

using ::testing::HasSubstr;

TEST(JobSpecModel, TakesAnEmulatedModelWithoutData) {
  const JobSpec job = *ToJobSpec(*ParseJobFile(R"(
name: e
model: {family: emulated, layers: 8, forward_ms: 5, input_grad_ms: 5, weight_grad_ms: 5, activation_bytes: 262144}
batch: {global: 16, microbatch: 1}
steps: 20
)",
                                               {}));
  EXPECT_EQ(job.model.forward_seconds, 0.005);
  EXPECT_TRUE(job.train.empty());
}

TEST(JobSpecModel, AnEmulatedModelSaysWhatItsLayersGather) {
  const auto parse = [](const char* bytes) {
    return Parse({absl::StrCat(
        "model={family: emulated, layers: 3, activation_bytes: 9, collective_bytes: ", bytes,
        "}")});
  };
  EXPECT_EQ(ToJobSpec(parse("4096"))->model.collective_bytes, 4096);
  EXPECT_EQ(ErrorOf(parse("-4")),
            "model.collective_bytes is -4: must be a multiple of 4 between 0 and 4294967296; give "
            "the bytes of f32 numbers, or leave it out");
  EXPECT_THAT(ErrorOf(parse("6")), HasSubstr("must be a multiple of 4"));
}

TEST(JobSpecModel, WarnsOfTheDataOfAnEmulatedModel) {
  EXPECT_TRUE(ToJobSpec(Parse({}))->warnings.empty());
  const JobSpec job =
      *ToJobSpec(Parse({"model={family: emulated, layers: 3, activation_bytes: 9}"}));
  EXPECT_TRUE(job.train.empty());
  ASSERT_EQ(job.warnings.size(), 1u);
  EXPECT_EQ(job.warnings[0], "data: has no effect on an emulated model, which reads no tokens");
}

TEST(JobSpecModel, DocumentsAreJoinedUnlessTheJobSaysWhereTheyEnd) {
  const JobSpec plain = *ToJobSpec(Parse({}));
  EXPECT_FALSE(plain.SeparatesDocuments());
  EXPECT_EQ(plain.documents, Documents::kUnstated);
  for (const char* documents : {"", "data.documents=separate"}) {
    std::vector<std::string> changes = {"data.document_end=10"};
    if (*documents != 0) changes.emplace_back(documents);
    const JobSpec job = *ToJobSpec(ToProto(*ToJobSpec(Parse(changes))));
    EXPECT_TRUE(job.SeparatesDocuments());
    EXPECT_EQ(job.document_end, 10);
    EXPECT_TRUE(BuildModelOf(job, 1, DeviceKind::kCpu)->separate_documents);
  }
  EXPECT_FALSE(ToJobSpec(Parse({"data.documents=join"}))->SeparatesDocuments());
  EXPECT_FALSE(BuildModelOf(plain, 1, DeviceKind::kCpu)->separate_documents);
  // Rows of a file may say where documents begin.
  EXPECT_TRUE(
      ToJobSpec(Parse({"data={documents: separate, train: {path: a, format: safetensors}}"})).ok());
}

TEST(JobSpecModel, WarnsOfFieldsOfEmulatedLayersWhereLayersCompute) {
  EXPECT_THAT(ToJobSpec(Parse({"model.forward_ms=5", "model.parameter_bytes=1024"}))->warnings,
              testing::ElementsAre(
                  "model.forward_ms: has no effect, because it is of family emulated alone",
                  "model.parameter_bytes: has no effect, because it is of family emulated alone"));
}

TEST(JobSpecModel, ReadsExperts) {
  constexpr char kMixtral[] =
      "model={family: mixtral, layers: 2, hidden: 48, heads: 4, context: 8, vocab: 9, inner: 40, "
      "experts: {count: 4, per_token: 2}}";
  const model::Mixture mixture = *ToJobSpec(Parse({kMixtral}))->model.mixture;
  EXPECT_EQ(mixture.experts, 4);
  EXPECT_EQ(mixture.chosen, 2);
  EXPECT_EQ(mixture.inner, 40);
  EXPECT_TRUE(mixture.normalised);
  EXPECT_EQ(mixture.auxiliary_loss, 0);
  EXPECT_EQ(mixture.scores, model::RouterScores::kSoftmax);
  const model::Mixture sigmoid =
      *ToJobSpec(Parse({kMixtral, "model.experts.scores=sigmoid", "model.experts.bias_rate=0.5"}))
           ->model.mixture;
  EXPECT_EQ(sigmoid.scores, model::RouterScores::kSigmoid);
  EXPECT_EQ(sigmoid.bias_rate, 0.5);
  EXPECT_EQ(ToJobSpec(Parse({kMixtral, "model.experts.scores=sigmoid",
                             "batch={global: 4194304, microbatch: 65536}"}))
                .status()
                .message(),
            "batch.global is 4194304: x model.context (8) must be at most 16777216 where "
            "model.experts.scores is sigmoid; lower it, or use scores: softmax");
  const struct {
    const char* change;
    const char* message;
  } cases[] = {
      {"model.experts.per_token=5",
       "model.experts.per_token is 5: must be between 1 and model.experts.count (4); correct one "
       "of them"},
      {"model.experts.bias_rate=0.1",
       "model.experts.bias_rate is 0.1: has no effect without scores: sigmoid, which alone has a "
       "bias; remove it, or add scores: sigmoid"},
  };
  for (const auto& [change, message] : cases)
    EXPECT_EQ(ToJobSpec(Parse({kMixtral, change})).status().message(), message);
  EXPECT_TRUE(ToJobSpec(Parse({kMixtral, "parallelism={device: cuda, transport: nccl}"})).ok());
}

TEST(JobSpecModel, LlamaHasDefaultsOfItsOwn) {
  const JobSpec job = *ToJobSpec(Parse(std::vector<std::string>{
      "model={family: llama, layers: 2, hidden: 768, heads: 12, context: 8, vocab: 9}"}));
  EXPECT_EQ(job.model.inner, 2048);
  EXPECT_EQ(job.model.kv_heads, 12);
  EXPECT_FALSE(job.model.tied_head);
}

TEST(JobSpecModel, AWindowEndsWithThePositions) {
  const auto with = [](const char* window) {
    return ToJobSpec(Parse(std::vector<std::string>{
        "model={family: mistral, layers: 2, hidden: 48, heads: 4, context: 8, positions: 16, "
        "vocab: 9}",
        absl::StrCat("model.attention_window=", window)}));
  };
  EXPECT_EQ(with("7")->model.EffectiveWindow(), 7);
  EXPECT_EQ(with("16")->model.EffectiveWindow(), 0);
  EXPECT_FALSE(with("auto")->model.attention_window.has_value());
  for (const char* const bad : {"17", "0", "-3"}) {
    EXPECT_EQ(with(bad).status().message(),
              absl::StrCat("model.attention_window is ", bad,
                           ": must be between 1 and the model's positions (16); remove it, and a "
                           "token sees all tokens before it"));
  }
}

TEST(JobSpecModel, AnEmulatedModelTakesNoGpu) {
  EXPECT_EQ(ErrorOf(Parse({"parallelism.device=cuda",
                           "model={family: emulated, layers: 3, activation_bytes: 9}"})),
            "parallelism.device is cuda: emulated layers compute nothing; use auto or cpu");
}

}  // namespace
}  // namespace takt::config
