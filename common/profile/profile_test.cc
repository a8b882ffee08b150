// SPDX-License-Identifier: Apache-2.0
#include "common/profile/profile.h"

#include <cmath>
#include <cstdint>
#include <string>

#include "gmock/gmock.h"

namespace takt::profile {
namespace {

using model::LayerKind;
using ::testing::DoubleEq;
using ::testing::DoubleNear;
using ::testing::Optional;

const Conditions kHere = {.machine = "a processor", .threads = 1, .ranks_per_host = 2};
const LayerShape kBlock = {.kind = LayerKind::kGpt2Block,
                           .hidden = 64,
                           .heads = 4,
                           .kv_heads = 4,
                           .head_size = 16,
                           .inner = 256,
                           .context = 32};
constexpr Passes kWork = {.forward = 100, .input_grad = 100, .weight_grad = 80};
constexpr Passes kSeconds = {.forward = 1, .input_grad = 2, .weight_grad = 4};

Profile WithBlock() {
  Profile profile;
  profile.AddLayer({kBlock, kHere}, {.work = kWork, .seconds = kSeconds});
  return profile;
}

TEST(Profile, FindsWhatWasMeasured) {
  const auto found = WithBlock().FindLayer({kBlock, kHere}, kWork);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->origin, Origin::kMeasured);
  EXPECT_EQ(found->seconds.weight_grad, 4);
}

TEST(Profile, ScalesTheNearestByItsWork) {
  Profile profile = WithBlock();
  LayerShape huge = kBlock;
  huge.hidden = 4096;
  profile.AddLayer({huge, kHere}, {.work = {1e6, 1e6, 1e6}, .seconds = {10, 10, 10}});
  LayerShape wider = kBlock;
  wider.hidden = 128;
  const auto found = profile.FindLayer({wider, kHere}, {200, 400, 80});
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->origin, Origin::kInterpolated);
  EXPECT_THAT(found->seconds.forward, DoubleEq(2));
  EXPECT_THAT(found->seconds.input_grad, DoubleEq(8));
  EXPECT_THAT(found->seconds.weight_grad, DoubleEq(4));
}

TEST(Profile, TakesTheSameLayerWithOtherNeighboursBeforeAnotherLayer) {
  Profile profile = WithBlock();
  Conditions alone = kHere;
  alone.ranks_per_host = 1;
  LayerShape longer = kBlock;
  longer.context = 512;
  profile.AddLayer({longer, alone}, {.work = {1600, 1600, 1280}, .seconds = {160, 160, 160}});
  const auto found = profile.FindLayer({kBlock, alone}, kWork);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->seconds.forward, 1);
}

TEST(Profile, SharesTheWorkAmongThreads) {
  Conditions four = kHere;
  four.threads = 4;
  EXPECT_EQ(WithBlock().FindLayer({kBlock, four}, kWork)->seconds.forward, 0.25);
}

TEST(Profile, KnowsNothingOfOtherKindsPrecisionsAndMachines) {
  const Profile profile = WithBlock();
  LayerShape llama = kBlock, bf16 = kBlock, fp8 = kBlock;
  llama.kind = LayerKind::kLlamaBlock;
  bf16.products = model::Precision::kBf16;
  fp8.fp8 = model::Fp8Recipe::kTensor;
  Conditions elsewhere = kHere;
  elsewhere.machine = "another processor";
  EXPECT_FALSE(profile.FindLayer({llama, kHere}, kWork).has_value());
  EXPECT_FALSE(profile.FindLayer({bf16, kHere}, kWork).has_value());
  EXPECT_FALSE(profile.FindLayer({fp8, kHere}, kWork).has_value());
  EXPECT_FALSE(profile.FindLayer({kBlock, elsewhere}, kWork).has_value());
  EXPECT_FALSE(profile.FindRank(elsewhere).has_value());
}

TEST(Profile, MixesWhatComesLater) {
  Profile profile = WithBlock();
  profile.AddLayer({kBlock, kHere}, {.work = kWork, .seconds = {2, 2, 2}}, 0.25);
  const Passes seconds = profile.FindLayer({kBlock, kHere}, kWork)->seconds;
  EXPECT_THAT(seconds.forward, DoubleEq(1.25));
  EXPECT_THAT(seconds.input_grad, DoubleEq(2));
  EXPECT_THAT(seconds.weight_grad, DoubleEq(3.5));

  profile.AddRank(kHere, {.update_seconds = 1, .dispatch_seconds = 2}, 0.25);
  profile.AddRank(kHere, {.update_seconds = 3, .dispatch_seconds = 2}, 0.25);
  EXPECT_EQ(profile.FindRank(kHere)->update_seconds, 1.5);
}

TEST(Profile, ScalesMessagesUpAndNotDown) {
  Profile profile;
  EXPECT_FALSE(profile.FindMessage(true, 1000).has_value());
  profile.AddMessage(KeyOfMessage(true, 1000), {.bytes = 1000, .seconds = 1e-5});
  EXPECT_THAT(profile.FindMessage(true, 3000), Optional(DoubleNear(3e-5, 1e-12)));
  EXPECT_THAT(profile.FindMessage(true, 10), Optional(DoubleEq(1e-5)));
  EXPECT_FALSE(profile.FindMessage(false, 1000).has_value());
}

TEST(Profile, ComparesALinkWithWhatMessagesOfItsSizesTakeBetweenHosts) {
  Profile profile;
  for (const std::int64_t bytes : {1000, 1'000'000})
    profile.AddMessage(KeyOfMessage(false, bytes), {.bytes = bytes, .seconds = 1e-9 * bytes});
  profile.AddLink(KeyOfLink("a", "b", 1000), {.bytes = 1000, .seconds = 3e-6});
  profile.AddLink(KeyOfLink("a", "b", 1'000'000), {.bytes = 1'000'000, .seconds = 5e-3});
  profile.AddLink(KeyOfLink("a", "c", 1000), {.bytes = 1000, .seconds = 5e-7});
  EXPECT_THAT(profile.FindSlowness("a", "b", 2000), Optional(DoubleNear(3, 1e-9)));
  EXPECT_THAT(profile.FindSlowness("a", "b", 500'000), Optional(DoubleNear(5, 1e-9)));
  // Only small messages were measured there.
  EXPECT_THAT(profile.FindSlowness("a", "c", 500'000), Optional(DoubleNear(0.5, 1e-9)));
  EXPECT_FALSE(profile.FindSlowness("b", "a", 1000).has_value());
  EXPECT_FALSE(profile.FindSlowness("a", "bb", 1000).has_value());
  profile.ForgetLinks();
  EXPECT_FALSE(profile.FindSlowness("a", "b", 1000).has_value());
  EXPECT_FALSE(profile.empty());
}

TEST(Profile, KeepsTheFirstHundredBytesOfAHostsName) {
  const std::string name(300, 'h');
  EXPECT_EQ(LinkName(name), std::string(100, 'h'));
  Profile profile;
  profile.AddMessage(KeyOfMessage(false, 8), {.bytes = 8, .seconds = 1e-5});
  profile.AddLink(KeyOfLink(name, "b", 8), {.bytes = 8, .seconds = 2e-5});
  EXPECT_THAT(profile.FindSlowness(name, "b", 8), Optional(DoubleNear(2, 1e-9)));
}

TEST(Profile, AddsAPartForEachRankOfASum) {
  Profile profile;
  profile.AddSum({.same_host = true, .num_ranks = 2}, 1e-9);
  EXPECT_THAT(profile.FindSum({.same_host = true, .num_ranks = 4}), Optional(DoubleEq(3e-9)));
  EXPECT_FALSE(profile.FindSum({.same_host = false, .num_ranks = 2}).has_value());
}

TEST(Profile, MeetingsAreOfTheNearestGroupAndSize) {
  Profile profile;
  EXPECT_FALSE(profile.FindMeeting(true, 2, 1000).has_value());
  profile.AddMeeting(KeyOfMeeting(true, 2, 1000), {.bytes = 1000, .seconds = 1e-5});
  profile.AddMeeting(KeyOfMeeting(true, 2, 1'000'000), {.bytes = 1'000'000, .seconds = 1e-3});
  EXPECT_THAT(profile.FindMeeting(true, 2, 10), Optional(DoubleEq(1e-5)));
  EXPECT_THAT(profile.FindMeeting(true, 2, 2'000'000), Optional(DoubleNear(2e-3, 1e-12)));
  EXPECT_THAT(profile.FindMeeting(true, 4, 1000), Optional(DoubleNear(3e-5, 1e-12)));
  EXPECT_FALSE(profile.FindMeeting(false, 2, 1000).has_value());
}

TEST(LayerShape, ReadsAsText) {
  EXPECT_EQ(ToString(kBlock),
            "gpt2 block, hidden 64, heads 4, inner 256, context 32, microbatch 1, f32");
  LayerShape windowed = kBlock;
  windowed.kind = LayerKind::kQwen3Block;
  windowed.attention_window = 9;
  EXPECT_EQ(ToString(windowed),
            "qwen3 block, hidden 64, heads 4, inner 256, context 32, window 9, microbatch 1, f32");
  LayerShape mixture = kBlock;
  mixture.kind = LayerKind::kMixtralBlock;
  mixture.experts = 8;
  mixture.chosen_experts = 2;
  EXPECT_EQ(ToString(mixture),
            "mixtral block, hidden 64, heads 4, inner 256, experts 2 of 8, context 32, microbatch "
            "1, f32");
  LayerShape fp8 = kBlock;
  fp8.products = model::Precision::kBf16;
  fp8.fp8 = model::Fp8Recipe::kBlock;
  EXPECT_EQ(ToString(fp8),
            "gpt2 block, hidden 64, heads 4, inner 256, context 32, microbatch 1, fp8 products by "
            "block");
  EXPECT_EQ(ToString(kHere), "a processor, 1 thread, 2 ranks on the host");
}

TEST(LayerShape, OfALayerThatRanksShareIsItsOwn) {
  LayerShape shared = kBlock;
  shared.tensor = 2;
  EXPECT_NE(shared, kBlock);
  EXPECT_THAT(ToString(shared), ::testing::EndsWith(", f32, tensor 2"));
  shared = kBlock;
  shared.context_ranks = 4;
  EXPECT_NE(shared, kBlock);
  EXPECT_THAT(ToString(shared), ::testing::EndsWith(", f32, shared by 4 context ranks"));
}

TEST(LayerShape, LeavesOutWhatDoesNotMatter) {
  const model::ModelConfig config{.layers = 3,
                                  .hidden = 64,
                                  .heads = 4,
                                  .kv_heads = 4,
                                  .inner = 256,
                                  .context = 32,
                                  .positions = 32,
                                  .vocab = 100};
  const model::Model model = model::BuildModel(config, 1).value();
  using enum model::Recompute;
  EXPECT_EQ(ShapeOf(model, model.layers[1], kNone), ShapeOf(model, model.layers[3], kNone));
  EXPECT_NE(ShapeOf(model, model.layers[1], kNone), ShapeOf(model, model.layers[1], kFull));
  EXPECT_EQ(ShapeOf(model, model.layers[0], kNone), ShapeOf(model, model.layers[0], kFull));
  EXPECT_EQ(ShapeOf(model, model.layers[0], kNone).vocab, 0);
  EXPECT_EQ(ShapeOf(model, model.layers[4], kNone).vocab, 100);
  model::ModelConfig windowed = config;
  windowed.family = model::Family::kMistral;
  windowed.attention_window = 9;
  const model::Model mistral = model::BuildModel(windowed, 1).value();
  EXPECT_EQ(ShapeOf(mistral, mistral.layers[1], kNone).attention_window, 9);
  EXPECT_EQ(ShapeOf(mistral, mistral.layers[0], kNone).attention_window, 0);
  model::ModelConfig experts = config;
  experts.family = model::Family::kQwen3Moe;
  experts.mixture = model::Mixture{.experts = 8, .chosen = 2, .inner = 40, .dense_blocks = {0}};
  const model::Model moe = model::BuildModel(experts, 1).value();
  EXPECT_EQ(ShapeOf(moe, moe.layers[1], kNone).inner, 256);
  EXPECT_EQ(ShapeOf(moe, moe.layers[1], kNone).experts, 0);
  EXPECT_EQ(ShapeOf(moe, moe.layers[2], kNone).inner, 40);
  EXPECT_EQ(ShapeOf(moe, moe.layers[2], kNone).experts, 8);
  EXPECT_EQ(ShapeOf(moe, moe.layers[2], kNone).chosen_experts, 2);
}

// Whoever reports a time may report nonsense. What is stored must be readable again.
TEST(Profile, LeavesOutWhatIsNoTime) {
  Profile profile;
  for (const double bad : {-1.0, std::nan(""), HUGE_VAL, 2 * kMostAmount}) {
    profile.AddLayer({{}, {}}, {.work = {1, 1, 1}, .seconds = {.forward = bad}});
    profile.AddRank({}, {.update_seconds = bad});
    profile.AddMessage(KeyOfMessage(true, 1), {.bytes = 1, .seconds = bad});
    profile.AddLink(KeyOfLink("a", "b", 1), {.bytes = 1, .seconds = bad});
    profile.AddSum({}, bad);
    profile.AddPair({}, bad);
    profile.AddSnapshot({}, bad);
  }
  EXPECT_TRUE(profile.empty());
}

}  // namespace
}  // namespace takt::profile
