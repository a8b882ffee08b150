// SPDX-License-Identifier: Apache-2.0
#include "common/program/lowering.h"

#include <algorithm>

#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/program/forward_only.h"
#include "common/program/program_serde.h"
#include "common/schedule/generate.h"
#include "common/schedule/text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::program {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

schedule::Schedule FromCsv(std::string_view csv) {
  auto schedule = schedule::ParseCsv(csv, "t");
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  schedule->placement = schedule::InferPlacement(*schedule).value();
  return *std::move(schedule);
}

schedule::Schedule Family(std::string_view name, int ranks, int microbatches) {
  return schedule::Generate(name, {.num_ranks = ranks, .num_microbatches = microbatches}).value();
}

std::string Body(const Program& program) {
  return absl::StrJoin(program.body, " ", [&](std::string* out, const Instruction& instruction) {
    out->append(ToString(instruction, program));
  });
}

int PoolSize(const Program& program, SlotKind kind, int stage) {
  return static_cast<int>(std::count_if(
      program.slots.begin(), program.slots.end(),
      [&](const Slot& slot) { return slot.kind == kind && slot.stage == StageId(stage); }));
}

const Instruction& Find(const Program& program, std::string_view text) {
  for (const Instruction& instruction : program.body) {
    if (ToString(instruction, program) == text) return instruction;
  }
  ADD_FAILURE() << std::string(text) << " is not in " << Body(program);
  return program.body.front();
}

std::vector<SlotKind> Kinds(const Program& program, const std::vector<SlotId>& slots) {
  std::vector<SlotKind> kinds;
  for (const SlotId slot : slots) kinds.push_back(program.slots[slot.value()].kind);
  return kinds;
}

TEST(Lower, ListsSendsAfterTheirMakersAndReceivesEarly) {
  const auto programs = Lower(Family("1f1b", 2, 2), {.optimizer = false});
  ASSERT_TRUE(programs.ok()) << programs.status();
  EXPECT_EQ(Body((*programs)[0]), "LOAD 0F0 0SEND_F0 1RECV_B0 0F1 0SEND_F1 1RECV_B1 0B0 0B1");
  EXPECT_EQ(Body((*programs)[1]), "LOAD 0RECV_F0 0RECV_F1 1F0 1B0 1SEND_B0 1F1 1B1 1SEND_B1");
}

TEST(Lower, EndsTheStepWithReductionsNormAndOptimizer) {
  const auto programs = Lower(Family("gpipe", 2, 1),
                              {.stages = {{.first_layer = LayerId(0), .last_layer = LayerId(2)},
                                          {.first_layer = LayerId(2), .last_layer = LayerId(3)}},
                               .reduce_gradients = true,
                               .tied_embeddings = true});
  ASSERT_TRUE(programs.ok()) << programs.status();
  EXPECT_EQ(Body((*programs)[0]),
            "LOAD 0F0 0SEND_F0 1RECV_B0 0B0 REDUCE_GRAD(1) REDUCE_GRAD(0) REDUCE_TIED NORM_PARTIAL "
            "NORM_EXCHANGE OPT");
  EXPECT_EQ(
      Body((*programs)[1]),
      "LOAD 0RECV_F0 1F0 1B0 1SEND_B0 REDUCE_GRAD(2) REDUCE_TIED NORM_PARTIAL NORM_EXCHANGE OPT");
}

TEST(Lower, GathersShardsAfterTheUpdateInTheOrderOfTheNextStep) {
  const auto programs = Lower(Family("gpipe", 2, 1),
                              {.stages = {{.first_layer = LayerId(0), .last_layer = LayerId(2)},
                                          {.first_layer = LayerId(2), .last_layer = LayerId(3)}},
                               .reduce_gradients = true,
                               .shard_optimizer = true});
  ASSERT_TRUE(programs.ok()) << programs.status();
  const Program& first = (*programs)[0];
  EXPECT_EQ(Body(first),
            "LOAD 0F0 0SEND_F0 1RECV_B0 0B0 REDUCE_GRAD(1) REDUCE_GRAD(0) NORM_PARTIAL "
            "NORM_EXCHANGE OPT GATHER_WEIGHTS(0) GATHER_WEIGHTS(1)");
  const Instruction& gather = Find(first, "GATHER_WEIGHTS(1)");
  EXPECT_EQ(Kinds(first, gather.reads), std::vector{SlotKind::kWeights});
  EXPECT_EQ(gather.reads, gather.writes);
  EXPECT_EQ(ToProto(first).version(), 7);
  const absl::StatusOr<Program> read = FromProto(ToProto(first));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(Body(*read), Body(first));
}

// Of what is whole and not needed, what is needed last is freed.
TEST(Lower, FreesWeightsOfStagesThatDoNotCompute) {
  const LowerOptions options{
      .reduce_gradients = true, .shard_optimizer = true, .free_weights = true};
  const auto programs = Lower(FromCsv("0F0,1F0,2F0,2B0,1B0,0B0\n"), options);
  ASSERT_TRUE(programs.ok()) << programs.status();
  const Program& program = (*programs)[0];
  EXPECT_EQ(Body(program),
            "LOAD UNSHARD(stage 0) 0F0 UNSHARD(stage 1) 1F0 RESHARD(stage 0) UNSHARD(stage 2) 2F0 "
            "2B0 REDUCE_GRAD(2) 1B0 REDUCE_GRAD(1) RESHARD(stage 1) UNSHARD(stage 0) 0B0 "
            "REDUCE_GRAD(0) RESHARD(stage 0) RESHARD(stage 2) NORM_PARTIAL NORM_EXCHANGE OPT");
  const Instruction& unshard = Find(program, "UNSHARD(stage 1)");
  EXPECT_EQ(Kinds(program, unshard.reads), std::vector{SlotKind::kShard});
  EXPECT_EQ(Kinds(program, unshard.writes), std::vector{SlotKind::kWeights});
  EXPECT_EQ(Find(program, "RESHARD(stage 1)").writes, unshard.writes);
  EXPECT_EQ(Kinds(program, Find(program, "OPT").writes),
            (std::vector{SlotKind::kShard, SlotKind::kShard, SlotKind::kShard}));
  EXPECT_EQ(ToProto(program).version(), 10);
  const absl::StatusOr<Program> read = FromProto(ToProto(program));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(Body(*read), Body(program));
  // A validation needs what F reads alone.
  EXPECT_EQ(Body(ForwardOnly(*programs)[0]),
            "LOAD UNSHARD(stage 0) 0F0 UNSHARD(stage 1) 1F0 RESHARD(stage 0) UNSHARD(stage 2) 2F0 "
            "RESHARD(stage 1) RESHARD(stage 2) EVAL");
}

TEST(Lower, RefusesToFreeWeightsWhereAllAreNeeded) {
  const LowerOptions options{
      .reduce_gradients = true, .shard_optimizer = true, .free_weights = true};
  for (const char* family : {"1f1b", "interleaved-1f1b", "zb-v", "chimera"}) {
    const absl::Status status = Lower(Family(family, 2, 4), options).status();
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("so none would be freed; use never, or interleaved-1f1b with chunks: 3 "
                          "or more"))
        << family;
  }
}

TEST(Lower, RefusesShardsThatNoTwoRanksShare) {
  const auto error = [](std::string_view family, const LowerOptions& options) {
    return std::string(Lower(Family(family, 2, 2), options).status().message());
  };
  EXPECT_THAT(error("1f1b", {.shard_optimizer = true}), HasSubstr("no two ranks sum a gradient"));
  EXPECT_THAT(error("pipedream-2bw", {.reduce_gradients = true, .shard_optimizer = true}),
              HasSubstr("pipedream-2bw keeps whole old weights"));
}

TEST(Lower, TouchesSlotsInTheOrderOfTheTable) {
  const auto programs = Lower(FromCsv("0F0,0I0,0W0\n1F0,1B0\n2F0,2I0,2W0\n"), {});
  ASSERT_TRUE(programs.ok()) << programs.status();
  using enum SlotKind;
  const Program& first = (*programs)[0];
  EXPECT_THAT(Kinds(first, Find(first, "0F0").reads), ElementsAre(kTokens, kWeights));
  EXPECT_THAT(Kinds(first, Find(first, "0F0").writes), ElementsAre(kOutput, kStash));
  EXPECT_THAT(Kinds(first, Find(first, "0I0").reads),
              ElementsAre(kTokens, kStash, kOutputGrad, kWeights));
  EXPECT_THAT(Kinds(first, Find(first, "0I0").writes), ElementsAre(kStash));
  EXPECT_THAT(Kinds(first, Find(first, "0W0").reads),
              ElementsAre(kTokens, kStash, kOutputGrad, kWeights, kGradient));
  EXPECT_THAT(Kinds(first, Find(first, "0W0").writes), ElementsAre(kGradient));
  const Program& middle = (*programs)[1];
  EXPECT_EQ(middle.body.front().op, Op::kRecv);  // no tokens in the middle
  EXPECT_THAT(Kinds(middle, Find(middle, "1B0").reads),
              ElementsAre(kInput, kStash, kOutputGrad, kWeights, kGradient));
  EXPECT_THAT(Kinds(middle, Find(middle, "1B0").writes),
              ElementsAre(kInputGrad, kStash, kGradient));
  const Program& last = (*programs)[2];
  EXPECT_THAT(Kinds(last, Find(last, "2F0").reads),
              ElementsAre(kInput, kTokens, kWeights, kScalars));
  EXPECT_THAT(Kinds(last, Find(last, "2F0").writes), ElementsAre(kStash, kScalars));
  EXPECT_THAT(Kinds(last, Find(last, "2I0").reads), ElementsAre(kInput, kTokens, kStash, kWeights));
}

TEST(Lower, EveryStageReadsTokensWhereDocumentsAreApart) {
  const auto programs =
      Lower(FromCsv("0F0,0I0,0W0\n1F0,1B0\n2F0,2I0,2W0\n"), {.separate_documents = true});
  ASSERT_TRUE(programs.ok()) << programs.status();
  using enum SlotKind;
  for (const Program& program : *programs) EXPECT_TRUE(CheckProgram(program).ok());
  const Program& middle = (*programs)[1];
  EXPECT_EQ(middle.body.front().op, Op::kLoad);
  EXPECT_THAT(Kinds(middle, Find(middle, "1F0").reads), ElementsAre(kInput, kTokens, kWeights));
  EXPECT_THAT(Kinds(middle, Find(middle, "1B0").reads),
              ElementsAre(kInput, kTokens, kStash, kOutputGrad, kWeights, kGradient));
}

TEST(Lower, MakesOneInstructionOfAPair) {
  const auto programs = Lower(FromCsv("0F0,0F1,0F2,0B0,0B1,0B2\n"
                                      "1F0,1B0,1F1,(1F2;1B1)OVERLAP_F_B,1B2\n"),
                              {.optimizer = false});
  ASSERT_TRUE(programs.ok()) << programs.status();
  const Program& program = (*programs)[1];
  EXPECT_EQ(Body(program),
            "LOAD 0RECV_F0 0RECV_F1 0RECV_F2 1F0 1B0 1SEND_B0 1F1 (1F2;1B1) 1SEND_B1 1B2 1SEND_B2");
  const Instruction& pair = Find(program, "(1F2;1B1)");
  using enum SlotKind;
  EXPECT_THAT(Kinds(program, pair.reads), ElementsAre(kInput, kTokens, kWeights, kScalars, kInput,
                                                      kTokens, kStash, kWeights, kGradient));
  EXPECT_THAT(Kinds(program, pair.writes),
              ElementsAre(kStash, kScalars, kInputGrad, kStash, kGradient));
  EXPECT_TRUE(CheckProgram(program).ok());
}

TEST(Lower, ReceivesWhatAPairMakesOnlyAfterBothItsInputs) {
  // 0F1 and 0B0 run together, after 1B0. So 1F needs no second slot for its input before.
  const auto programs =
      Lower(FromCsv("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1B0,1F1,1B1\n"), {.optimizer = false});
  ASSERT_TRUE(programs.ok()) << programs.status();
  EXPECT_EQ(Body((*programs)[0]), "LOAD 0F0 0SEND_F0 1RECV_B0 (0F1;0B0) 0SEND_F1 1RECV_B1 0B1");
  EXPECT_EQ(Body((*programs)[1]), "LOAD 0RECV_F0 1F0 1B0 1SEND_B0 0RECV_F1 1F1 1B1 1SEND_B1");
  EXPECT_EQ(PoolSize((*programs)[1], SlotKind::kInput, 1), 1);
}

TEST(Lower, SumsTheTwoCopiesOfABidirectionalScheduleInOneOrder) {
  // Rank 0 completes stage 1 first, and rank 1 stage 0. Both reduce in the order of rank 0.
  const auto programs =
      Lower(FromCsv("0F0,1F1,1B1,0B0\n1F0,0F1,0B1,1B0\n"), {.tied_embeddings = true});
  ASSERT_TRUE(programs.ok()) << programs.status();
  EXPECT_EQ(Body((*programs)[0]),
            "LOAD 0F0 0SEND_F0 0RECV_F1 1F1 1B1 1SEND_B1 REDUCE_GRAD(1) 1RECV_B0 0B0 "
            "REDUCE_GRAD(0) REDUCE_TIED NORM_PARTIAL NORM_EXCHANGE OPT");
  EXPECT_EQ(Body((*programs)[1]),
            "LOAD 0RECV_F0 1F0 0F1 0SEND_F1 1RECV_B1 0B1 1B0 1SEND_B0 REDUCE_GRAD(1) "
            "REDUCE_GRAD(0) REDUCE_TIED NORM_PARTIAL NORM_EXCHANGE OPT");
  for (int rank = 0; rank < 2; ++rank) {
    const Program& program = (*programs)[rank];
    EXPECT_EQ(program.mirror, PpRank(1 - rank));
    EXPECT_EQ(Find(program, "REDUCE_TIED").reads.size(), 2u);
    // The norm counts each stage once, on the rank of its number. The optimizer runs on both
    // copies.
    const std::vector<SlotId>& counted = Find(program, "NORM_PARTIAL").reads;
    EXPECT_EQ(counted.size(), 2u);
    EXPECT_NE(FindSlot(program, counted, SlotKind::kGradient, StageId(rank)), SlotId(-1));
    EXPECT_EQ(Find(program, "OPT").writes.size(), 2u);
  }
}

TEST(Lower, HandsOverLocallyBetweenStagesOfOneRank) {
  const auto programs = Lower(FromCsv("0F0,1F0,1B0,0B0\n"), {.tied_embeddings = true});
  ASSERT_TRUE(programs.ok()) << programs.status();
  const Program& program = programs->front();
  EXPECT_EQ(Body(program), "LOAD 0F0 1F0 1B0 0B0 REDUCE_TIED NORM_PARTIAL NORM_EXCHANGE OPT");
  const SlotId input = FindSlot(program, Find(program, "0F0").writes, SlotKind::kInput, StageId(1));
  EXPECT_NE(input, SlotId(-1));
  EXPECT_EQ(FindSlot(program, Find(program, "1F0").reads, SlotKind::kInput, StageId(1)), input);
  const SlotId gradient =
      FindSlot(program, Find(program, "1B0").writes, SlotKind::kOutputGrad, StageId(0));
  EXPECT_NE(gradient, SlotId(-1));
  EXPECT_EQ(FindSlot(program, Find(program, "0B0").reads, SlotKind::kOutputGrad, StageId(0)),
            gradient);
  EXPECT_EQ(Find(program, "REDUCE_TIED").reads.size(), 2u);
}

TEST(Lower, SizesPools) {
  const int m = 8;
  const auto programs = Lower(Family("1f1b", 4, m), {});
  for (int r = 0; r < 4; ++r) {
    const Program& program = (*programs)[r];
    EXPECT_EQ(PoolSize(program, SlotKind::kStash, r), 4 - r);
    // There is one more than are in use, because the next may arrive at any time.
    if (r > 0) {
      EXPECT_EQ(PoolSize(program, SlotKind::kInput, r), 4 - r + 1);
    }
    if (r < 3) {
      EXPECT_EQ(PoolSize(program, SlotKind::kOutput, r), 2);
    }
    if (r > 0) {
      EXPECT_EQ(PoolSize(program, SlotKind::kInputGrad, r), 2);
    }
  }
  const auto single = Lower(Family("1f1b", 2, 1), {});
  EXPECT_EQ(PoolSize((*single)[0], SlotKind::kOutput, 0), 1);
  EXPECT_EQ(PoolSize((*single)[1], SlotKind::kInput, 1), 1);
}

TEST(Lower, KeepsOneFifoPerPeerAndDirectionWhenBothNeighboursAreTheSameRank) {
  const auto programs =
      Lower(schedule::Generate("interleaved-1f1b",
                               {.num_ranks = 2, .num_microbatches = 2, .num_chunks = 2})
                .value(),
            {.optimizer = false});
  ASSERT_TRUE(programs.ok()) << programs.status();
  for (const Program& program : *programs) {
    EXPECT_EQ(std::count_if(program.lanes.begin(), program.lanes.end(),
                            [](const Lane& lane) { return lane.kind == LaneKind::kSend; }),
              2);
  }
}

TEST(Lower, CarriesMessageAndStashSizes) {
  const auto programs =
      Lower(Family("1f1b", 2, 2), {.stages = {{.output_bytes = 100, .stash_bytes = 7},
                                              {.first_layer = LayerId(1),
                                               .last_layer = LayerId(2),
                                               .output_bytes = 50,
                                               .stash_bytes = 9}}});
  ASSERT_TRUE(programs.ok()) << programs.status();
  for (const Program& program : *programs) {
    for (const Slot& slot : program.slots) {
      if (slot.kind >= SlotKind::kInput && slot.kind <= SlotKind::kInputGrad &&
          slot.kind != SlotKind::kStash) {
        EXPECT_EQ(slot.bytes, 100);
      }
      if (slot.kind == SlotKind::kStash) {
        EXPECT_EQ(slot.bytes, slot.stage == StageId(0) ? 7 : 9);
      }
    }
  }
}

// ZB-H1 keeps the W of up to P microbatches for later. A B needs no slot.
TEST(Lower, KeepsWhatIsRecomputedFromInputGradToWeightGrad) {
  using enum SlotKind;
  const std::vector<StageShape> stages = {
      {.recomputed_bytes = 5},
      {.first_layer = LayerId(1), .last_layer = LayerId(2)},
      {.first_layer = LayerId(2), .last_layer = LayerId(3), .recomputed_bytes = 6}};
  const auto programs = Lower(Family("zb-h1", 3, 6), {.stages = stages});
  ASSERT_TRUE(programs.ok()) << programs.status();
  const Program& first = (*programs)[0];
  EXPECT_THAT(Kinds(first, Find(first, "0I0").writes), ElementsAre(kStash, kRecomputed));
  EXPECT_THAT(Kinds(first, Find(first, "0W0").reads),
              ElementsAre(kTokens, kStash, kOutputGrad, kRecomputed, kWeights, kGradient));
  EXPECT_EQ(PoolSize(first, SlotKind::kRecomputed, 0), 1);
  EXPECT_EQ(PoolSize((*programs)[1], SlotKind::kRecomputed, 1), 0);
  EXPECT_EQ(PoolSize((*programs)[2], SlotKind::kRecomputed, 2), 3);
  const std::vector<Program> joined = Lower(Family("1f1b", 3, 6), {.stages = stages}).value();
  for (const Program& program : joined) {
    EXPECT_EQ(PoolSize(program, SlotKind::kRecomputed, program.pp_rank.value()), 0);
  }
}

TEST(Lower, RefusesInvalidSchedulesAndPartitions) {
  EXPECT_THAT(std::string(Lower(FromCsv("0F0,0B0,0B0\n"), {}).status().message()),
              HasSubstr("occurs twice"));
  const auto schedule = Family("1f1b", 2, 1);
  EXPECT_THAT(std::string(Lower(schedule, {.stages = {{}}}).status().message()),
              HasSubstr("each of the 2 stages"));
  EXPECT_THAT(std::string(Lower(schedule, {.stages = {{}, {}}}).status().message()),
              HasSubstr("begins at layer 1"));
}

}  // namespace
}  // namespace takt::program
