// SPDX-License-Identifier: Apache-2.0
#include "common/program/program.h"

#include <functional>

#include "common/program/lowering.h"
#include "common/program/program_serde.h"
#include "common/schedule/generate.h"
#include "common/schedule/text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::program {
namespace {

using ::testing::HasSubstr;

Program MiddleOfThree() {
  const auto schedule = schedule::Generate("1f1b", {.num_ranks = 3, .num_microbatches = 4});
  return Lower(*schedule, {.reduce_gradients = true, .tied_embeddings = true}).value()[1];
}

// Lane 0 writes slot 0, and lane 1 reads it. Slot 1 is touched by lane 1 alone.
Program WriterAndReader() {
  Program program;
  program.slots.resize(2);
  program.lanes.resize(2);
  program.body.resize(4);
  for (const int i : {0, 2}) program.body[i].writes = {SlotId(0)};
  for (const int i : {1, 3}) {
    program.body[i].lane = LaneId(1);
    program.body[i].reads = {SlotId(0)};
    program.body[i].writes = {SlotId(1)};
  }
  return program;
}

TEST(Dependencies, OrderReadersAfterWritersAndWritersAfterReaders) {
  const auto waits = Dependencies(WriterAndReader());
  ASSERT_EQ(waits.size(), 4u);
  const auto expect = [&](int i, int lane, int position) {
    ASSERT_EQ(waits[i].size(), 1u) << i;
    EXPECT_EQ(waits[i][0].lane, LaneId(lane)) << i;
    EXPECT_EQ(waits[i][0].position, position) << i;
  };
  expect(0, 1, -1);  // the previous step's last reader
  expect(1, 0, 0);
  expect(2, 1, 0);
  expect(3, 0, 1);
}

TEST(Dependencies, LeaveOutWhatTheLaneHasAlreadyWaitedFor) {
  Program program = WriterAndReader();
  program.body[2].writes = {};  // slot 0 is written once, read twice
  const auto waits = Dependencies(program);
  EXPECT_EQ(waits[1].size(), 1u);
  EXPECT_TRUE(waits[3].empty());
}

TEST(Dependencies, WaitForTheLatestOfSeveralReaders) {
  Program program = WriterAndReader();
  program.body[2].writes = {};
  const auto waits = Dependencies(program);
  ASSERT_EQ(waits[0].size(), 1u);
  EXPECT_EQ(waits[0][0].position, -1);
}

TEST(ProgramSerde, ReadsBackWhatItWrote) {
  const Program program = MiddleOfThree();
  const v1::Program proto = ToProto(program);
  const auto back = FromProto(proto);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(ToProto(*back).SerializeAsString(), proto.SerializeAsString());
  EXPECT_EQ(back->body.size(), program.body.size());
  EXPECT_EQ(back->schedule, "1f1b");
}

TEST(ProgramSerde, NamesBothVersionsWhenTheyDiffer) {
  v1::Program proto = ToProto(MiddleOfThree());
  proto.set_version(kProgramVersion + 1);
  const absl::Status status = FromProto(proto).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("version 13, this worker runs versions 1 to 12"));
}

TEST(ProgramSerde, WritesTheOldestVersionThatSaysItAll) {
  const auto version = [](std::string_view csv, std::vector<StageShape> stages = {}) {
    auto schedule = schedule::ParseCsv(csv, "t").value();
    schedule.placement = schedule::InferPlacement(schedule).value();
    const std::vector<Program> programs = Lower(schedule, {.stages = std::move(stages)}).value();
    for (const Program& program : programs) {
      const auto back = FromProto(ToProto(program));
      EXPECT_TRUE(back.ok()) << back.status();
      EXPECT_EQ(back->mirror, program.mirror);
      EXPECT_EQ(ToProto(*back).SerializeAsString(), ToProto(program).SerializeAsString());
    }
    return ToProto(programs[0]).version();
  };
  EXPECT_EQ(version("0F0,0F1,0B0,0B1\n"), 1);
  EXPECT_EQ(version("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n"), 2);
  EXPECT_EQ(version("0F0,1F1,1B1,0B0\n1F0,0F1,1B0,0B1\n"), 2);
  EXPECT_EQ(version("0F0,0I0,0W0\n"), 1);
  EXPECT_EQ(version("0F0,0I0,0W0\n", {{.recomputed_bytes = 1}}), 4);
  EXPECT_EQ(version("0F0,0B0\n", {{.recomputed_bytes = 1}}), 1);
  const auto separate = [](std::string_view csv) {
    auto schedule = schedule::ParseCsv(csv, "t").value();
    schedule.placement = schedule::InferPlacement(schedule).value();
    return Lower(schedule, {.separate_documents = true}).value();
  };
  EXPECT_EQ(ToProto(separate("0F0,0B0\n1F0,1B0\n")[1]).version(), 1);
  EXPECT_EQ(ToProto(separate("0F0,0B0\n1F0,1B0\n2F0,2B0\n")[1]).version(), 8);
}

TEST(ProgramSerde, RefusesDamagedPairs) {
  const auto schedule = schedule::ParseCsv("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n", "t").value();
  const v1::Program sound = ToProto(Lower(schedule, {}).value()[0]);
  ASSERT_EQ(sound.body(2).op(), v1::OP_OVERLAP);
  const std::pair<const char*, std::function<void(v1::Instruction&)>> damages[] = {
      {"stage out of range", [](v1::Instruction& o) { o.clear_backward_stage(); }},
      {"microbatch out of range", [](v1::Instruction& o) { o.set_backward_microbatch(2); }},
      {"overlaps a microbatch with itself", [](v1::Instruction& o) { o.set_microbatch(0); }},
      {"does not touch the slots", [](v1::Instruction& o) { o.mutable_reads()->RemoveLast(); }},
      {"does not touch the slots", [](v1::Instruction& o) { o.mutable_writes()->RemoveLast(); }},
      {"does not touch the slots", [](v1::Instruction& o) { o.clear_reads(); }},
      {"does not touch the slots", [](v1::Instruction& o) { o.set_op(v1::OP_FORWARD); }}};
  for (const auto& [message, damage] : damages) {
    v1::Program proto = sound;
    damage(*proto.mutable_body(2));
    EXPECT_THAT(std::string(FromProto(proto).status().message()), HasSubstr(message));
  }
}

TEST(ProgramSerde, RefusesEachKindOfDamage) {
  const std::pair<const char*, std::function<void(v1::Program&)>> damages[] = {
      {"pp_rank", [](v1::Program& p) { p.set_pp_rank(3); }},
      {"pp_size", [](v1::Program& p) { p.set_pp_size(-1); }},
      {"mirror", [](v1::Program& p) { p.set_mirror(1); }},
      {"mirror", [](v1::Program& p) { p.set_mirror(3); }},
      {"num_stages", [](v1::Program& p) { p.set_num_stages(0); }},
      {"num_microbatches", [](v1::Program& p) { p.set_num_microbatches(1 << 30); }},
      {"slot 0 has a stage", [](v1::Program& p) { p.mutable_slots(0)->set_stage(99); }},
      {"slot 0 has no known kind",
       [](v1::Program& p) { p.mutable_slots(0)->set_kind(v1::SlotKind(77)); }},
      {"negative", [](v1::Program& p) { p.mutable_slots(0)->set_bytes(-1); }},
      {"unknown op", [](v1::Program& p) { p.mutable_body(0)->set_op(v1::Op(258)); }},
      {"not part of version 12", [](v1::Program& p) { p.mutable_body(0)->set_op(v1::Op(12)); }},
      {"lane is out of range", [](v1::Program& p) { p.mutable_body(0)->set_lane(100); }},
      {"lane of another kind", [](v1::Program& p) { p.mutable_body(0)->set_lane(0); }},
      {"slot 4000 is out of range", [](v1::Program& p) { p.mutable_body(0)->add_writes(4000); }},
      {"slot -1 is out of range", [](v1::Program& p) { p.mutable_body(0)->add_reads(-1); }},
      {"does not touch the slots", [](v1::Program& p) { p.mutable_body(0)->add_reads(0); }},
      {"does not touch the slots", [](v1::Program& p) { p.mutable_body(0)->clear_writes(); }},
      {"REDUCE_GRAD(7) does not touch",
       [](v1::Program& p) {
         for (v1::Instruction& instruction : *p.mutable_body()) {
           if (instruction.op() == v1::OP_REDUCE_GRAD) instruction.set_layer(7);
         }
       }},
      {"stage out of range", [](v1::Program& p) { p.mutable_body(0)->set_stage(3); }},
      {"microbatch out of range", [](v1::Program& p) { p.mutable_body(0)->set_microbatch(4); }},
      {"another rank as its peer", [](v1::Program& p) { p.mutable_lanes(1)->set_peer(1); }},
      {"needs a direction",
       [](v1::Program& p) { p.mutable_lanes(1)->set_direction(v1::DIRECTION_UNSPECIFIED); }},
      {"is there twice", [](v1::Program& p) { *p.add_lanes() = p.lanes(1); }},
      {"peer or a direction", [](v1::Program& p) { p.mutable_lanes(0)->set_peer(0); }},
  };
  for (const auto& [message, damage] : damages) {
    v1::Program proto = ToProto(MiddleOfThree());
    damage(proto);
    const absl::Status status = FromProto(proto).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
}

TEST(LaneName, SaysWhatTheLaneDoesAndWithWhichRank) {
  EXPECT_EQ(LaneName({.kind = LaneKind::kCompute}), "compute");
  EXPECT_EQ(LaneName({.kind = LaneKind::kLoad}), "load");
  EXPECT_EQ(LaneName({.kind = LaneKind::kReduce}), "reduce");
  EXPECT_EQ(
      LaneName({.kind = LaneKind::kSend, .peer = PpRank(1), .direction = Direction::kActivation}),
      "send F to 1");
  EXPECT_EQ(
      LaneName({.kind = LaneKind::kRecv, .peer = PpRank(2), .direction = Direction::kGradient}),
      "recv B from 2");
}

TEST(FindSlot, ReturnsMinusOneWhenThereIsNone) {
  const Program program = MiddleOfThree();
  EXPECT_EQ(FindSlot(program, {}, SlotKind::kInput, StageId(1)), SlotId(-1));
  for (const Instruction& instruction : program.body) {
    if (instruction.op != Op::kOptimizer) continue;
    EXPECT_NE(FindSlot(program, instruction.writes, SlotKind::kWeights, StageId(1), 1), SlotId(-1));
    EXPECT_EQ(FindSlot(program, instruction.writes, SlotKind::kWeights, StageId(1), 0), SlotId(-1));
  }
}

}  // namespace
}  // namespace takt::program
