// SPDX-License-Identifier: Apache-2.0
#include "common/profile/profile_serde.h"

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::profile {
namespace {

using model::LayerKind;
using model::Precision;
using model::Recompute;
using ::testing::HasSubstr;

// Every field of it differs from its default and from its neighbours.
Profile Measured() {
  const Conditions cores{.machine = "a processor", .threads = 2, .ranks_per_host = 3};
  const Conditions gpu{.machine = "a GPU", .threads = 0, .ranks_per_host = 1};
  const LayerShape block{.kind = LayerKind::kLlamaBlock,
                         .hidden = 512,
                         .heads = 8,
                         .kv_heads = 4,
                         .head_size = 64,
                         .inner = 2048,
                         .vocab = 7,
                         .context = 128,
                         .microbatch = 5,
                         .products = Precision::kBf16,
                         .activations = Precision::kBf16,
                         .recompute = Recompute::kSelective,
                         .fp8 = model::Fp8Recipe::kBlock,
                         .attention_window = 100,
                         .experts = 16,
                         .chosen_experts = 6,
                         .context_ranks = 2};
  const LayerShape head{.kind = LayerKind::kGpt2Head, .hidden = 32, .vocab = 256, .context = 16};
  Profile profile;
  profile.AddLayer({block, cores}, {.work = {1e9, 2e9, 3e9}, .seconds = {0.1, 0.2, 0.3}});
  profile.AddLayer({head, gpu}, {.work = {4, 5, 6}, .seconds = {7, 8, 9}});
  profile.AddRank(cores, {.update_seconds = 1e-9, .dispatch_seconds = 2e-6});
  for (const std::int64_t bytes : {0, 1000, 100'000})
    profile.AddMessage(KeyOfMessage(true, bytes), {.bytes = bytes, .seconds = 1e-5});
  profile.AddMessage(KeyOfMessage(false, 1000), {.bytes = 1000, .seconds = 3e-5});
  profile.AddLink(KeyOfLink("here", "there", 1000), {.bytes = 1000, .seconds = 2e-5});
  profile.AddLink(KeyOfLink("here", "there", 100'000), {.bytes = 100'000, .seconds = 4e-5});
  profile.AddLink(KeyOfLink("there", "here", 1000), {.bytes = 1000, .seconds = 6e-5});
  profile.AddSum({.same_host = false, .num_ranks = 4}, 1e-10);
  profile.AddMeeting(KeyOfMeeting(true, 4, 1000), {.bytes = 1000, .seconds = 7e-5});
  profile.AddPair(cores, 0.97);
  profile.AddSnapshot(cores, 1e-10);
  return profile;
}

TEST(ProfileSerde, EveryValueComesBack) {
  const v1::Profile proto = ToProto(Measured());
  EXPECT_FALSE(proto.program_version().empty());
  const absl::StatusOr<Profile> read = FromProto(proto);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(ToProto(*read).DebugString(), proto.DebugString());
  ASSERT_EQ(read->layers().size(), 2u);
  const auto& [key, sample] = *read->layers().rbegin();  // kinds are in the order of their numbers
  EXPECT_EQ(key.first, Measured().layers().rbegin()->first.first);
  EXPECT_EQ(key.second.machine, "a processor");
  EXPECT_EQ(sample.work.weight_grad, 3e9);
  EXPECT_EQ(sample.seconds.input_grad, 0.2);
  EXPECT_EQ(read->ranks().begin()->second.dispatch_seconds, 2e-6);
  EXPECT_EQ(read->messages().size(), 4u);
  ASSERT_EQ(read->links().size(), 3u);
  EXPECT_EQ(read->links().begin()->first, KeyOfLink("here", "there", 1000));
  EXPECT_EQ(read->links().rbegin()->second.seconds, 6e-5);
  EXPECT_EQ(read->sums().begin()->first.num_ranks, 4);
  ASSERT_EQ(read->meetings().size(), 1u);
  EXPECT_EQ(read->meetings().begin()->first, KeyOfMeeting(true, 4, 1000));
  EXPECT_EQ(read->meetings().begin()->second.seconds, 7e-5);
  EXPECT_EQ(read->pairs(), Measured().pairs());
  EXPECT_EQ(read->snapshots(), Measured().snapshots());
}

TEST(ProfileSerde, ValuesThatNobodyCanHaveMeasuredAreRefused) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  const std::vector<std::function<void(v1::Profile&)>> faults = {
      [](v1::Profile& p) { p.mutable_layers(0)->clear_shape(); },
      [](v1::Profile& p) { p.mutable_layers(0)->mutable_shape()->set_hidden(-1); },
      [](v1::Profile& p) { p.mutable_layers(0)->mutable_shape()->set_microbatch(0); },
      [](v1::Profile& p) { p.mutable_layers(0)->mutable_shape()->set_kind(4); },  // emulated
      [](v1::Profile& p) { p.mutable_layers(0)->mutable_shape()->set_kind(99); },
      [](v1::Profile& p) { p.mutable_layers(0)->mutable_shape()->set_products(3); },
      [](v1::Profile& p) { p.mutable_layers(0)->mutable_shape()->set_activations(0); },
      [](v1::Profile& p) { p.mutable_layers(0)->mutable_shape()->set_recompute(9); },
      [](v1::Profile& p) { p.mutable_layers(0)->mutable_work()->set_forward(-1); },
      [](v1::Profile& p) { p.mutable_layers(0)->mutable_work()->set_forward(1e-300); },
      [](v1::Profile& p) { p.mutable_layers(0)->mutable_seconds()->set_forward(1e300); },
      [](v1::Profile& p) { p.mutable_layers(0)->mutable_seconds()->set_weight_grad(kNan); },
      [](v1::Profile& p) { p.mutable_layers(0)->mutable_conditions()->set_threads(-1); },
      [](v1::Profile& p) { p.mutable_ranks(0)->mutable_conditions()->set_ranks_per_host(0); },
      [](v1::Profile& p) { p.mutable_ranks(0)->set_update_seconds(kInfinite); },
      [](v1::Profile& p) { p.mutable_messages(0)->set_bytes(-1); },
      [](v1::Profile& p) { p.mutable_messages(0)->set_seconds(-1e-9); },
      [](v1::Profile& p) { p.mutable_links(0)->set_bytes(-1); },
      [](v1::Profile& p) { p.mutable_links(0)->set_seconds(kNan); },
      [](v1::Profile& p) { p.mutable_sums(0)->set_num_ranks(1); },
      [](v1::Profile& p) { p.mutable_sums(0)->set_seconds_per_byte(kNan); },
      [](v1::Profile& p) { p.mutable_meetings(0)->set_num_ranks(1); },
      [](v1::Profile& p) { p.mutable_meetings(0)->set_seconds(kNan); },
      [](v1::Profile& p) { p.mutable_snapshots(0)->set_seconds_per_byte(kNan); },
  };
  for (std::size_t i = 0; i < faults.size(); ++i) {
    v1::Profile proto = ToProto(Measured());
    faults[i](proto);
    EXPECT_EQ(FromProto(proto).status().code(), absl::StatusCode::kInvalidArgument) << i;
    EXPECT_EQ(ParseProfile(proto.SerializeAsString()).status().code(), absl::StatusCode::kDataLoss)
        << i;
  }
}

TEST(ProfileSerde, BytesAreReadByTheVersionThatWroteThem) {
  const absl::StatusOr<Profile> read = ParseProfile(FormatProfile(Measured()));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(FormatProfile(*read), FormatProfile(Measured()));
  EXPECT_EQ(ParseProfile("not a profile").status().code(), absl::StatusCode::kDataLoss);
  v1::Profile proto = ToProto(Measured());
  proto.set_program_version("0.0.7");
  const absl::Status status = ParseProfile(proto.SerializeAsString()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("0.0.7"));
}

}  // namespace
}  // namespace takt::profile
