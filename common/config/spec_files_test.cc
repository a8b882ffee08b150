// SPDX-License-Identifier: Apache-2.0
#include "common/config/spec_files.h"

#include <map>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/config/job_file.h"
#include "common/config/job_spec_serde.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "takt/v1/job_spec.pb.h"

namespace takt::config {
namespace {

constexpr char kConfig[] =
    R"({"model_type": "gpt2", "n_layer": 4, "n_embd": 64, "n_head": 4, "vocab_size": 256,
  "n_positions": 32, "n_inner": 100, "layer_norm_epsilon": 1e-6})";

constexpr char kMistral[] =
    R"({"model_type": "mistral", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
  "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 8,
  "vocab_size": 9, "sliding_window": 4})";

// Reads files from a map. Every other file is missing.
ReadFile Files(std::map<std::string, std::string> files) {
  return [files](const std::string& path) -> absl::StatusOr<std::string> {
    const auto it = files.find(path);
    if (it == files.end()) return absl::NotFoundError("no such file");
    return it->second;
  };
}

v1::JobSpec Parse(std::string_view text) { return *ParseJobFile(text, {}); }

TEST(SpecFiles, FillTheModelFromTheFolderOfWeights) {
  v1::JobSpec spec = Parse("model: {init_from: dir}");
  ASSERT_TRUE(FillFromFiles(spec, Files({{"dir/config.json", kConfig}})).ok());
  EXPECT_EQ(spec.model().family(), v1::MODEL_FAMILY_GPT2);
  EXPECT_EQ(spec.model().layers(), 4);
  EXPECT_EQ(spec.model().inner(), 100);
  EXPECT_EQ(spec.model().positions(), 32);
  EXPECT_EQ(spec.model().context(), 32);
  EXPECT_EQ(spec.model().norm_epsilon(), 1e-6);
  EXPECT_EQ(spec.model().init_from(), "dir");
}

TEST(SpecFiles, DropoutOfTheFileIsAWarningUnlessTheJobSaysZero) {
  const std::string config = std::string(kConfig).substr(0, sizeof(kConfig) - 2) +
                             R"(, "attn_pdrop": 0.1, "embd_pdrop": 0.2, "resid_pdrop": null})";
  for (const bool confirmed : {false, true}) {
    v1::JobSpec spec = Parse(absl::StrCat(
        "{name: a, steps: 1, batch: {global: 1, microbatch: 1}, data: {train: {path: a, format: "
        "bytes}}, model: {hf_config: c.json",
        confirmed ? ", dropout: 0" : "", "}}"));
    const absl::Status filled = FillFromFiles(spec, Files({{"c.json", config}}));
    ASSERT_TRUE(filled.ok()) << filled;
    const absl::StatusOr<JobSpec> job = ToJobSpec(spec);
    ASSERT_TRUE(job.ok()) << job.status();
    const std::string warning =
        "model: the config.json names dropout of 0.2, but this job trains without; dropout: 0 "
        "confirms that";
    if (confirmed) {
      EXPECT_THAT(job->warnings, testing::IsEmpty());
    } else {
      EXPECT_THAT(job->warnings, testing::ElementsAre(warning));
    }
  }
}

TEST(SpecFiles, DocumentsEndWithTheTokenThatTheFileNames) {
  const std::string config =
      std::string(kConfig).substr(0, sizeof(kConfig) - 2) + R"(, "eos_token_id": [7, 8]})";
  const auto end = [&](const std::string& data) -> std::optional<int> {
    v1::JobSpec spec = Parse(absl::StrCat("{model: {hf_config: c.json}, data: {", data, "}}"));
    const absl::Status filled = FillFromFiles(spec, Files({{"c.json", config}}));
    EXPECT_TRUE(filled.ok()) << filled;
    if (!spec.data().has_document_end()) return std::nullopt;
    return spec.data().document_end();
  };
  EXPECT_EQ(end("documents: separate"), 7);
  EXPECT_EQ(end("documents: separate, document_end: 3"), 3);
  EXPECT_EQ(end("documents: join"), std::nullopt);
  EXPECT_EQ(end("shuffle: true"), std::nullopt);
}

TEST(SpecFiles, KeepAShorterContext) {
  v1::JobSpec spec = Parse("model: {hf_config: c.json, context: 16, layers: 4}");
  ASSERT_TRUE(FillFromFiles(spec, Files({{"c.json", kConfig}})).ok());
  EXPECT_EQ(spec.model().context(), 16);
  EXPECT_EQ(spec.model().positions(), 32);
}

TEST(SpecFiles, FillingTwiceChangesNothing) {
  v1::JobSpec once = Parse("model: {hf_config: c.json}\nparallelism: {schedule: 'file:s.csv'}");
  const ReadFile files = Files({{"c.json", kMistral}, {"s.csv", "0F0,0B0\n"}});
  ASSERT_TRUE(FillFromFiles(once, files).ok());
  EXPECT_EQ(once.parallelism().schedule_csv(), "0F0,0B0\n");
  v1::JobSpec twice = once;
  ASSERT_TRUE(FillFromFiles(twice, files).ok());
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(once, twice));
}

TEST(SpecFiles, TheJobSaysHowExpertsAreBalanced) {
  constexpr char kMixtral[] =
      R"({"model_type": "mixtral", "hidden_size": 16, "intermediate_size": 24,
          "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
          "max_position_embeddings": 8, "vocab_size": 50, "num_local_experts": 4,
          "num_experts_per_tok": 2, "router_aux_loss_coef": 0.02, "output_router_logits": true})";
  const ReadFile files = Files({{"c.json", kMixtral}});
  v1::JobSpec spec = Parse("model: {hf_config: c.json}");
  ASSERT_TRUE(FillFromFiles(spec, files).ok());
  EXPECT_EQ(spec.model().experts().count(), 4);
  EXPECT_EQ(spec.model().experts().auxiliary_loss(), 0.02);
  spec = Parse("model: {hf_config: c.json, experts: {auxiliary_loss: 0.5}}");
  ASSERT_TRUE(FillFromFiles(spec, files).ok());
  EXPECT_EQ(spec.model().experts().auxiliary_loss(), 0.5);
  EXPECT_EQ(spec.model().experts().per_token(), 2);
  spec = Parse("model: {hf_config: c.json, experts: {count: 8}}");
  EXPECT_EQ(FillFromFiles(spec, files).message(),
            "model.experts.count is 8: must be 4, as c.json says; remove it from the job");
  spec = Parse("model: {hf_config: c.json, experts: {scores: sigmoid}}");
  EXPECT_EQ(FillFromFiles(spec, files).message(),
            "model.experts.scores is 2: must be 1, as c.json says; remove it from the job");
  spec = Parse("model: {hf_config: c.json, experts: {normalize: false, dense_blocks: [0, 1]}}");
  EXPECT_EQ(FillFromFiles(spec, files).message(),
            "model.experts.normalize is false: must be true, as c.json says; remove it from the "
            "job\n"
            "model.experts.dense_blocks is 0, 1: must be left out, as c.json says; remove it from "
            "the job");
}

TEST(SpecFiles, NameWhatContradictsOrIsMissing) {
  const struct {
    const char* job;
    const char* message;
  } cases[] = {
      {"model: {hf_config: c.json, layers: 8, heads: 2}",
       "model.layers is 8: must be 4, as c.json says; remove it from the job\n"
       "model.heads is 2: must be 4, as c.json says; remove it from the job"},
      {"model: {hf_config: mistral.json, tied_head: true, norm_epsilon: 0.5, rope_theta: 7}",
       "model.tied_head is true: must be false, as mistral.json says; remove it from the job\n"
       "model.norm_epsilon is 0.5: must be 1e-06, as mistral.json says; remove it from the job\n"
       "model.rope_theta is 7: must be 10000, as mistral.json says; remove it from the job"},
      {"model: {hf_config: mistral.json, rope_scaling: {factor: 8, low_freq_factor: 1, "
       "high_freq_factor: 4, original_positions: 16}}",
       "model.rope_scaling is {factor: 8, low_freq_factor: 1, high_freq_factor: 4, "
       "original_positions: 16}: must be left out, as mistral.json says; remove it from the job"},
      {"model: {hf_config: mistral.json, attention_window: 8}",
       "model.attention_window is 8: must be 4, as mistral.json says; remove it from the job"},
      {"model: {init_from: nowhere}",
       "model.init_from is nowhere/config.json: must name a readable file: no such file; check the "
       "path"},
      {"parallelism: {schedule: 'file:x.csv'}",
       "parallelism.schedule is x.csv: must name a readable file: no such file; check the path"},
      {"model: {init_from: a, hf_config: c.json}",
       "model.hf_config is c.json: must not stand beside model.init_from, which has a config.json "
       "of its own; remove one of "
       "them"},
  };
  for (const auto& [job, message] : cases) {
    v1::JobSpec spec = Parse(job);
    const absl::Status status =
        FillFromFiles(spec, Files({{"c.json", kConfig}, {"mistral.json", kMistral}}));
    EXPECT_EQ(status.message(), message);
  }
}

TEST(SpecFiles, MakeRelativePathsAbsolute) {
  v1::JobSpec spec = Parse(
      "model: {init_from: w}\ndata: {train: {path: a.txt}, validation: {path: "
      "/b.txt}}\ncheckpoint: {directory: c}\nlogging: {tensorboard: t}\nparallelism: {schedule: "
      "'file:s.csv'}");
  MakePathsAbsolute(spec, "/jobs");
  EXPECT_EQ(spec.model().init_from(), "/jobs/w");
  EXPECT_EQ(spec.data().train(0).path(), "/jobs/a.txt");
  EXPECT_EQ(spec.data().validation().path(), "/b.txt");
  EXPECT_EQ(spec.checkpoint().directory(), "/jobs/c");
  EXPECT_EQ(spec.logging().tensorboard(), "/jobs/t");
  EXPECT_EQ(spec.parallelism().schedule(), "file:/jobs/s.csv");
  EXPECT_FALSE(spec.model().has_hf_config());
}

}  // namespace
}  // namespace takt::config
