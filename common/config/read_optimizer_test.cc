// SPDX-License-Identifier: Apache-2.0
#include "common/config/read_optimizer.h"

#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/config/job_spec_serde.h"
#include "common/config/parameter_groups.h"
#include "common/config/testing/job_text.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "takt/v1/job_spec.pb.h"

namespace takt::config {
namespace {

using google::protobuf::util::MessageDifferencer;
using ::testing::HasSubstr;

TEST(ReadOptimizer, GroupsNeedParameters) {
  const JobSpec job = *ToJobSpec(Parse({"optimizer.groups={parameters: '*.bias'}"}));
  ASSERT_EQ(job.groups.size(), 1u);
  EXPECT_EQ(job.groups[0].learning_rate_scale, 1);
  EXPECT_FALSE(job.groups[0].weight_decay.has_value());
  v1::JobSpec many = Parse({});
  for (int i = 0; i < 65; ++i) many.mutable_optimizer()->add_groups()->set_parameters("*");
  EXPECT_EQ(ErrorOf(many),
            "optimizer.groups is 65 groups: must be at most 64; join some by `*` in their "
            "patterns");
  v1::JobSpec longer = Parse({});
  longer.mutable_optimizer()->add_groups()->set_parameters(std::string(201, '*'));
  EXPECT_THAT(ErrorOf(longer), HasSubstr("optimizer.groups[0].parameters is 201 bytes long"));
  EXPECT_THAT(ToJobSpec(Parse({"optimizer.groups={parameters: x}",
                               "model={family: emulated, layers: 3, activation_bytes: 9}"}))
                  ->warnings,
              testing::Contains("optimizer.groups: has no effect on an emulated model, which has "
                                "no parameters"));
}

TEST(ReadOptimizer, EachOptimizerHasItsTraits) {
  const auto traits = [](const char* section) { return TraitsOf(*ToJobSpec(Parse({section}))); };
  EXPECT_STREQ(traits("optimizer={}").name, "adamw");
  EXPECT_EQ(traits("optimizer={}").moments, 2);
  EXPECT_STREQ(traits("optimizer={lion: {weight_decay: 0.25}}").name, "lion");
  EXPECT_EQ(traits("optimizer={lion: {weight_decay: 0.25}}").weight_decay, 0.25);
  EXPECT_EQ(traits("optimizer={lion: {}}").moments, 1);
  EXPECT_EQ(traits("optimizer={lion: {}}").learning_rate, 1e-4);
  EXPECT_STREQ(traits("optimizer={sgd: {}}").name, "sgd");
  EXPECT_EQ(traits("optimizer={sgd: {}}").moments, 1);
  EXPECT_EQ(traits("optimizer={sgd: {momentum: 0}}").moments, 0);
  EXPECT_EQ(traits("optimizer={sgd: {clip_norm: 3}}").clip_norm, 3);
  EXPECT_STREQ(traits("optimizer={muon: {}}").name, "muon");
  EXPECT_EQ(traits("optimizer={muon: {clip_norm: 3}}").clip_norm, 3);
  const JobSpec job = *ToJobSpec(Parse({"optimizer={sgd: {momentum: 0}}"}));
  const model::Model model = *BuildModelOf(job, 1, DeviceKind::kCpu);
  for (const model::Parameter* const parameter : model.AllParameters())
    EXPECT_EQ(parameter->state_elements(), parameter->elements());
}

TEST(ReadOptimizer, MuonUpdatesTheMatricesOfBlocksAndAdamwTheRest) {
  const JobSpec job = *ToJobSpec(
      Parse({"optimizer={muon: {learning_rate: 0.5, weight_decay: 0.25, adamw: {learning_rate: 2, "
             "weight_decay: 0.75}}, groups: [{parameters: '*.ln_1.bias', learning_rate_scale: 3}]}",
             "model.layers=1"}));
  const model::Model model = *BuildModelOf(job, 1, DeviceKind::kCpu);
  std::vector<std::string> by_muon;
  for (const model::Parameter* const parameter : model.AllParameters()) {
    const UpdateSettings settings = SettingsOf(job, *parameter);
    EXPECT_EQ(parameter->moments, parameter->by_muon ? 1 : 2) << parameter->name;
    if (parameter->by_muon) {
      by_muon.push_back(parameter->name);
      EXPECT_EQ(settings.learning_rate_scale, 1);
      EXPECT_EQ(settings.weight_decay, 0.25);
    } else {
      EXPECT_EQ(settings.learning_rate_scale,
                parameter->name == "transformer.h.0.ln_1.bias" ? 12 : 4)
          << parameter->name;
      EXPECT_EQ(settings.weight_decay, parameter->shape.size() == 2 ? 0.75 : 0) << parameter->name;
    }
  }
  EXPECT_THAT(by_muon, testing::ElementsAre("transformer.h.0.attn.c_attn.weight",
                                            "transformer.h.0.attn.c_proj.weight",
                                            "transformer.h.0.mlp.c_fc.weight",
                                            "transformer.h.0.mlp.c_proj.weight"));
  EXPECT_EQ(ToJobSpec(Parse({"optimizer={muon: {learning_rate: 0.5}}"}))->muon->adamw.learning_rate,
            0.5);
}

TEST(ReadOptimizer, BarrierIsKeptAndPassedOn) {
  const auto barrier_of = [](const std::string& barrier) {
    const JobSpec job = *ToJobSpec(Parse({"optimizer.barrier=" + barrier}));
    EXPECT_EQ(ToJobSpec(ToProto(job))->barrier, job.barrier);
    return job.barrier;
  };
  EXPECT_EQ(barrier_of("auto"), Barrier::kAuto);
  EXPECT_EQ(barrier_of("true"), Barrier::kAlways);
  EXPECT_EQ(barrier_of("false"), Barrier::kNever);
}

TEST(ReadOptimizer, AJobMayEndWithinItsWarmup) {
  const JobSpec job =
      *ToJobSpec(Parse({"optimizer.lr_schedule={decay: cosine, warmup_steps: 11}"}));
  EXPECT_LT(job.steps, 11);
  EXPECT_EQ(job.lr_schedule.decay_steps, 11);
  EXPECT_DOUBLE_EQ(LearningRate(11, job.lr_schedule, 11), 11);
  EXPECT_EQ(LearningRate(11, job.lr_schedule, 5), 5);
}

TEST(ReadOptimizer, WsdEndsWithTheJobUnlessItSaysHowLongItIsStable) {
  const JobSpec job =
      *ToJobSpec(Parse({"optimizer.lr_schedule={decay: wsd, warmup_steps: 2, decay_steps: 3}"}));
  EXPECT_EQ(job.lr_schedule.decay, LrDecay::kWsd);
  EXPECT_EQ(job.lr_schedule.stable_steps, 5);
  EXPECT_EQ(job.lr_schedule.decay_steps, 3);
  EXPECT_EQ(ToJobSpec(ToProto(job))->lr_schedule.stable_steps, 5);
  const JobSpec at_once =
      *ToJobSpec(Parse({"optimizer.lr_schedule={decay: wsd, stable_steps: 0, decay_steps: 3}"}));
  EXPECT_EQ(at_once.lr_schedule.stable_steps, 0);
  EXPECT_EQ(ToJobSpec(ToProto(at_once))->lr_schedule.stable_steps, 0);
}

TEST(ReadOptimizer, ProtoAndBackIsTheSame) {
  const std::vector<std::string> changes[] = {
      {"optimizer.groups=[{parameters: '*.bias', learning_rate_scale: 2, weight_decay: 0.5}, "
       "{parameters: transformer.wte.weight, learning_rate_scale: 0}]"},
      {"optimizer={lion: {learning_rate: 2e-4, beta2: 0.5}}"},
      {"optimizer={sgd: {momentum: 0.5, nesterov: true, clip_norm: 0}}"},
      {"optimizer={muon: {momentum: 0.5, nesterov: false, clip_norm: 0, adamw: {beta1: 0.5}}}"},
      {"optimizer={adamw: {clip_norm: 0}, error_feedback: 0.5}"},
      {"optimizer.lr_schedule={warmup_steps: 2, decay: linear, min_learning_rate: 1e-5}"},
      {"optimizer.lr_schedule={decay: wsd, stable_steps: 4, decay_steps: 2}"},
      {"optimizer.lr_schedule={warmup_steps: 2, decay: inverse_sqrt, min_learning_rate: 1e-5}"},
  };
  for (const auto& change : changes) {
    const v1::JobSpec proto = ToProto(*ToJobSpec(Parse(change)));
    EXPECT_TRUE(MessageDifferencer::Equals(ToProto(*ToJobSpec(proto)), proto)) << change[0];
  }
  const JobSpec job = *ToJobSpec(ToProto(*ToJobSpec(Parse(changes[0]))));
  ASSERT_EQ(job.groups.size(), 2u);
  EXPECT_EQ(job.groups[0].parameters, "*.bias");
  EXPECT_EQ(job.groups[0].learning_rate_scale, 2);
  EXPECT_EQ(job.groups[0].weight_decay, 0.5);
  EXPECT_EQ(job.groups[1].learning_rate_scale, 0);
}

TEST(ReadOptimizer, EachRuleHasItsOwnMessage) {
  const struct {
    const char* override;
    const char* message;
  } cases[] = {
      {"optimizer.adamw.learning_rate=-0.1",
       "optimizer.adamw.learning_rate is -0.1: must be a finite number, 0 or more; correct it"},
      {"optimizer.adamw.learning_rate=1e300",
       "optimizer.adamw.learning_rate is 1e+300: must be a finite number, 0 or more, at most "
       "3.40282e+38, the largest number of f32; correct it"},
      {"optimizer={muon: {learning_rate: 1e39}}",
       "optimizer.muon.learning_rate is 1e+39: must be a finite number, 0 or more, at most "
       "3.40282e+38, the largest number of f32; correct it"},
      {"optimizer.adamw.beta2=1",
       "optimizer.adamw.beta2 is 1: must be at least 0 and below 1; correct it"},
      {"optimizer={adamw: {}, sgd: {}}",
       "optimizer is adamw and sgd: must have one of adamw, lion, sgd and muon; remove the others"},
      {"optimizer={barrier: never}",
       "optimizer.barrier is never: must be auto, true or false; use one of them"},
      {"optimizer.error_feedback=1.5",
       "optimizer.error_feedback is 1.5: must be a number from 0 to 1; 1 feeds back all of an "
       "update's error, and 0 nothing"},
      {"optimizer={muon: {learning_rate: 0}}",
       "optimizer.muon.learning_rate is 0: must be above 0: the rate of AdamW keeps its proportion "
       "to it; set it, or use optimizer.adamw alone"},
      {"optimizer={muon: {learning_rate: -1}}",
       "optimizer.muon.learning_rate is -1: must be a finite number, 0 or more; correct it"},
      {"optimizer={muon: {momentum: 1}}",
       "optimizer.muon.momentum is 1: must be at least 0 and below 1; correct it"},
      {"optimizer={muon: {adamw: {beta2: 1}}}",
       "optimizer.muon.adamw.beta2 is 1: must be at least 0 and below 1; correct it"},
      {"optimizer={muon: {adamw: {clip_norm: 2}}}",
       "optimizer.muon.adamw.clip_norm is 2: cannot be set: the norm is over the gradients of all "
       "parameters; set optimizer.muon.clip_norm"},
      {"optimizer={lion: {beta2: 1}}",
       "optimizer.lion.beta2 is 1: must be at least 0 and below 1; correct it"},
      {"optimizer={sgd: {momentum: 1}}",
       "optimizer.sgd.momentum is 1: must be at least 0 and below 1; correct it"},
      {"optimizer={sgd: {momentum: 0, nesterov: true}}",
       "optimizer.sgd.nesterov is true: needs momentum, whose step it takes in advance; set "
       "momentum, e.g. 0.9, or remove it"},
      {"optimizer={sgd: {learning_rate: 0.1}, lr_schedule: {decay: linear, min_learning_rate: 1}}",
       "optimizer.lr_schedule.min_learning_rate is 1: must be at most optimizer.sgd.learning_rate "
       "(0.1); lower it"},
      {"optimizer.lr_schedule={decay: cosine, min_learning_rate: 1}",
       "optimizer.lr_schedule.min_learning_rate is 1: must be at most "
       "optimizer.adamw.learning_rate (0.0003); lower it"},
      {"optimizer.lr_schedule={decay: cosine, warmup_steps: 11, decay_steps: 10}",
       "optimizer.lr_schedule.decay_steps is 10: must be at least warmup_steps (11); it counts "
       "from the first step, warmup "
       "included"},
      {"optimizer.lr_schedule={min_learning_rate: 1e-5}",
       "optimizer.lr_schedule.min_learning_rate is 1e-05: has no effect while "
       "optimizer.lr_schedule.decay is constant; set decay: cosine, or remove it"},
      {"optimizer.lr_schedule={decay: constant, decay_steps: 5}",
       "optimizer.lr_schedule.decay_steps is 5: has no effect while "
       "optimizer.lr_schedule.decay is constant; set decay: cosine, or remove it"},
      {"optimizer.lr_schedule={decay: linear, stable_steps: 5}",
       "optimizer.lr_schedule.stable_steps is 5: has no effect while optimizer.lr_schedule.decay "
       "is linear; set decay: wsd, or remove it"},
      {"optimizer.lr_schedule={decay: linear, warmup_steps: 3, decay_steps: 2}",
       "optimizer.lr_schedule.decay_steps is 2: must be at least warmup_steps (3); it counts from "
       "the first step, warmup included"},
      {"optimizer.lr_schedule={decay: inverse_sqrt}",
       "optimizer.lr_schedule.warmup_steps is 0 or missing: must be 1 or more; set it: "
       "inverse_sqrt falls as sqrt(warmup_steps / step)"},
      {"optimizer.lr_schedule={decay: inverse_sqrt, warmup_steps: 2, decay_steps: 5}",
       "optimizer.lr_schedule.decay_steps is 5: has no effect while optimizer.lr_schedule.decay is "
       "inverse_sqrt; set decay: cosine, or remove it"},
      {"optimizer.lr_schedule={decay: wsd, stable_steps: 5}",
       "optimizer.lr_schedule.decay_steps is 0 or missing: must be 1 or more: the steps that wsd "
       "falls; set it, e.g. to a tenth of steps"},
      {"optimizer.lr_schedule={decay: wsd, stable_steps: -1, decay_steps: 2}",
       "optimizer.lr_schedule.stable_steps is -1: must be 0 or more; correct it"},
      {"optimizer.lr_schedule={decay: wsd, warmup_steps: 4, decay_steps: 7}",
       "optimizer.lr_schedule.decay_steps is 7: must be at most steps (10) less warmup_steps (4) "
       "where stable_steps is left out; lower it, or set stable_steps"},
      {"optimizer.groups={parameters: '*.biass'}",
       "optimizer.groups[0].parameters is *.biass: must match a parameter that no group above it "
       "matches; e.g. *.bias; names are as in Hugging Face's files: transformer.ln_f.weight"},
      {"optimizer.groups=[{parameters: '*', weight_decay: 0}, {parameters: '*.bias'}]",
       "optimizer.groups[1].parameters is *.bias: must match a parameter that no group above it "
       "matches; e.g. *.bias; names are as in Hugging Face's files: transformer.ln_f.weight"},
      {"optimizer.groups={weight_decay: 0}",
       "optimizer.groups[0].parameters: is missing; name parameters, e.g. *.bias"},
      {"optimizer.groups={parameters: '*', learning_rate_scale: -1}",
       "optimizer.groups[0].learning_rate_scale is -1: must be a finite number, 0 or more; correct "
       "it"},
  };
  for (const auto& [override, message] : cases)
    EXPECT_EQ(ErrorOf(Parse({override})), message) << override;
}

}  // namespace
}  // namespace takt::config
