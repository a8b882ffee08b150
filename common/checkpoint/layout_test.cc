// SPDX-License-Identifier: Apache-2.0
#include "common/checkpoint/layout.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace takt::checkpoint {
namespace {

TEST(Layout, NamesAreThoseOfTheDocument) {
  EXPECT_EQ(StepDirectoryName(StepId(100)), "step-00000100");
  EXPECT_EQ(StepDirectoryName(StepId(1234567890)), "step-1234567890");
  EXPECT_EQ(PartialDirectoryName(StepId(100), "kjv-gpt", Generation(3)),
            "step-00000100.partial-kjv-gpt-3");
  EXPECT_EQ(ReplacedDirectoryName(StepId(100), 2), "step-00000100.replaced-2");
  EXPECT_EQ(ModelFile(LayerId(0), 14), "model-00001-of-00014.safetensors");
  EXPECT_EQ(OptimizerFile(LayerId(13), 14), "optimizer-00014-of-00014.safetensors");
}

TEST(Layout, ParsesItsOwnDirectoryNames) {
  const auto step = ParseStepDirectoryName("step-00000100");
  ASSERT_TRUE(step.has_value());
  EXPECT_EQ(step->step, StepId(100));
  EXPECT_EQ(step->kind, StepDirectoryKind::kStep);
  const auto partial = ParseStepDirectoryName("step-1234567890.partial-a.b-2-3");
  ASSERT_TRUE(partial.has_value());
  EXPECT_EQ(partial->step, StepId(1234567890));
  EXPECT_EQ(partial->kind, StepDirectoryKind::kPartial);
  EXPECT_EQ(partial->suffix, "a.b-2-3");
  const auto replaced = ParseStepDirectoryName("step-00000100.replaced-2");
  ASSERT_TRUE(replaced.has_value());
  EXPECT_EQ(replaced->kind, StepDirectoryKind::kReplaced);
}

TEST(Layout, APartialDirectoryTellsItsWriterClaimedOrNot) {
  const PartialWriter writer{.job = "a.b-2", .generation = Generation(3)};
  EXPECT_EQ(WriterOf("a.b-2-3"), writer);
  const std::string claimed = ClaimedDirectoryName(StepId(7), "a.b-2", Generation(3), "c0-ffee");
  EXPECT_EQ(claimed, "step-00000007.partial-a.b-2-3+c0-ffee");
  EXPECT_EQ(WriterOf(ParseStepDirectoryName(claimed)->suffix), writer);
  for (const char* suffix : {"removed", "a-x", "a-", "-", "a+b-3"})
    EXPECT_EQ(WriterOf(suffix), std::nullopt) << suffix;
}

TEST(Layout, OtherNamesAreNotOurs) {
  for (const char* name :
       {"", "step-", "step-100", "step-000000100", "step-00000000", "step-0000010x", "latest",
        "step-00000100.", "step-00000100.partial-", "step-00000100.old", "astep-00000100",
        "step-+0000100", "step-99999999999999999999"}) {
    EXPECT_FALSE(ParseStepDirectoryName(name).has_value()) << name;
  }
}

TEST(Layout, IndexNamesTheFileOfEveryTensorOnce) {
  const auto model = model::BuildModel({.layers = 2,
                                        .hidden = 8,
                                        .heads = 2,
                                        .kv_heads = 2,
                                        .inner = 32,
                                        .context = 4,
                                        .positions = 4,
                                        .vocab = 11},
                                       1);
  ASSERT_TRUE(model.ok()) << model.status();
  const nlohmann::json index = nlohmann::json::parse(FormatIndex(*model));
  EXPECT_EQ(index["metadata"]["total_size"], 4 * model->num_parameters());
  EXPECT_EQ(index["weight_map"].size(), model->AllParameters().size());
  EXPECT_EQ(index["weight_map"]["transformer.wte.weight"], "model-00001-of-00004.safetensors");
  EXPECT_EQ(index["weight_map"]["transformer.h.1.ln_1.bias"], "model-00003-of-00004.safetensors");
  EXPECT_FALSE(index["weight_map"].contains("lm_head.weight"));
}

}  // namespace
}  // namespace takt::checkpoint
