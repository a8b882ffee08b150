// SPDX-License-Identifier: Apache-2.0
#include "cli/base/message_json.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "gtest/gtest.h"

namespace takt::cli {
namespace {

TEST(MessageJson, StepHasEveryPublishedFieldAsANumber) {
  const Json json = StepJson("kjv", v1::StepReport());
  EXPECT_EQ(json["job"], "kjv");
  for (const char* field : {"step", "loss", "grad_norm", "learning_rate", "tokens",
                            "tokens_per_second", "step_seconds", "bubble_fraction"}) {
    ASSERT_TRUE(json.contains(field)) << field;
    EXPECT_TRUE(json[field].is_number()) << field;
  }
  EXPECT_TRUE(json["schedule"].is_string());
  EXPECT_FALSE(json.contains("validation_loss"));
}

TEST(MessageJson, DoublesReadBackToTheSameBits) {
  std::mt19937_64 random(20240217);
  for (int i = 0; i < 20000; ++i) {
    const auto value = std::bit_cast<double>(random());
    if (!std::isfinite(value)) continue;
    v1::StepReport step;
    step.set_loss(value);
    const double back = Json::parse(Dump(StepJson("j", step)))["loss"].get<double>();
    EXPECT_EQ(std::bit_cast<std::uint64_t>(back), std::bit_cast<std::uint64_t>(value)) << value;
  }
}

TEST(MessageJson, NumbersOf64BitsStayNumbers) {
  v1::StepReport step;
  step.set_tokens(std::numeric_limits<std::int64_t>::max());
  EXPECT_NE(Dump(StepJson("j", step)).find("\"tokens\":9223372036854775807"), std::string::npos);
}

TEST(MessageJson, NumbersThatAreNotFiniteAreNull) {
  v1::StepReport step;
  step.set_loss(std::nan(""));
  step.set_grad_norm(std::numeric_limits<double>::infinity());
  const Json json = Json::parse(Dump(StepJson("j", step)));
  EXPECT_TRUE(json["loss"].is_null());
  EXPECT_TRUE(json["grad_norm"].is_null());
}

TEST(MessageJson, EnumeratorsAreShort) {
  v1::Job job;
  job.set_state(v1::JOB_STATE_RUNNING);
  job.mutable_spec()->mutable_model()->set_family(v1::MODEL_FAMILY_GPT2);
  const Json json = ToJson(job);
  EXPECT_EQ(json["state"], "RUNNING");
  EXPECT_EQ(json["spec"]["model"]["family"], "gpt2");
}

TEST(MessageJson, ASpecLeavesOutWhatNobodyChose) {
  v1::JobSpec spec;
  spec.mutable_model()->set_family(v1::MODEL_FAMILY_GPT2);
  const Json json = ToJson(spec);
  EXPECT_FALSE(json.contains("precision"));
  EXPECT_EQ(json["steps"], 0);
  EXPECT_EQ(ToJson(v1::Job())["state"], "UNSPECIFIED") << "it is no choice of a job file";
}

TEST(MessageJson, AutoIsAWord) {
  v1::JobSpec spec;
  spec.mutable_parallelism()->set_pipeline(-1);
  spec.mutable_parallelism()->set_data(-1);
  spec.mutable_batch()->set_microbatch(-1);
  EXPECT_EQ(ToJson(spec)["parallelism"]["data"], "auto");
  EXPECT_EQ(ToJson(spec)["batch"]["microbatch"], "auto");
  EXPECT_EQ(ToJson(spec)["parallelism"]["pipeline"], -1);  // it says so by being unset
  spec.mutable_parallelism()->set_data(2);
  EXPECT_EQ(ToJson(spec)["parallelism"]["data"], 2);
}

TEST(MessageJson, TimesAreRfc3339) {
  v1::Job job;
  job.mutable_create_time()->set_seconds(1700000000);
  job.mutable_create_time()->set_nanos(500000000);
  EXPECT_EQ(ToJson(job)["create_time"], "2023-11-14T22:13:20.5Z");
}

TEST(MessageJson, RepeatedFieldsAreListsEvenWhenEmpty) {
  v1::StepReport step;
  EXPECT_EQ(ToJson(step)["bubble_by_pp_rank"], Json::array());
  step.add_bubble_by_pp_rank(0.25);
  EXPECT_EQ(ToJson(step)["bubble_by_pp_rank"], Json::array({0.25}));
}

TEST(MessageJson, TextThatIsNotUtf8DoesNotBreakTheOutput) {
  v1::Job job;
  job.set_reason("\xff!");
  EXPECT_EQ(Json::parse(Dump(ToJson(job)))["reason"], "\xEF\xBF\xBD!");
}

}  // namespace
}  // namespace takt::cli
