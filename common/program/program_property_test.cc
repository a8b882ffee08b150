// SPDX-License-Identifier: Apache-2.0
// Tests what lowered programs have in common, over random valid schedules in every placement.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/program/forward_only.h"
#include "common/program/lowering.h"
#include "common/program/program_serde.h"
#include "common/program/testing/any_stages.h"
#include "common/schedule/testing/any_family.h"
#include "common/schedule/testing/any_order.h"
#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"

namespace takt::program {
namespace {

using schedule::Uniform;

std::vector<Program> AnyPrograms() {
  const schedule::Schedule schedule =
      Uniform(0, 2) == 0 ? schedule::AnyFamily() : schedule::AnyOrder();
  const auto programs = Lower(schedule, {.stages = AnyStages(schedule.num_stages),
                                         .reduce_gradients = Uniform(0, 2) == 0,
                                         .tied_embeddings = Uniform(0, 2) == 0,
                                         .separate_documents = Uniform(0, 2) == 0,
                                         .merge_weight_grads = Uniform(0, 2) == 0,
                                         .optimizer = Uniform(0, 4) != 0});
  RC_ASSERT(programs.ok());
  return *programs;
}

RC_GTEST_PROP(ProgramProperty, LoweredAndForwardOnlyProgramsPassTheCheck, ()) {
  const std::vector<Program> programs = AnyPrograms();
  for (const Program& program : programs) RC_ASSERT(CheckProgram(program).ok());
  for (const Program& program : ForwardOnly(programs)) RC_ASSERT(CheckProgram(program).ok());
}

RC_GTEST_PROP(ProgramProperty, StoredProgramsReadBack, ()) {
  for (const Program& program : AnyPrograms()) {
    const v1::Program proto = ToProto(program);
    const auto back = FromProto(proto);
    RC_ASSERT(back.ok());
    RC_ASSERT(ToProto(*back).SerializeAsString() == proto.SerializeAsString());
  }
}

// One FIFO per ordered pair of ranks would be enough for messages of both directions.
RC_GTEST_PROP(ProgramProperty, EachRankReceivesInTheOrderInWhichTheOtherSends, ()) {
  using Message = std::pair<std::string, Direction>;
  std::map<std::pair<PpRank, PpRank>, std::vector<Message>> sent, received;  // by (from, to)
  for (const Program& program : AnyPrograms()) {
    for (const Instruction& instruction : program.body) {
      const Lane& lane = program.lanes[instruction.lane.value()];
      Message message(std::to_string(instruction.stage.value()) + "," +
                          std::to_string(instruction.microbatch.value()),
                      lane.direction);
      if (instruction.op == Op::kSend) sent[{program.pp_rank, lane.peer}].push_back(message);
      if (instruction.op == Op::kRecv) received[{lane.peer, program.pp_rank}].push_back(message);
    }
  }
  RC_ASSERT(sent == received);
}

// There are as many as the row has microbatches between I and W at once, and none for a B.
RC_GTEST_PROP(ProgramProperty, RecomputedTensorsHaveAsManySlotsAsAreAliveAtOnce, ()) {
  const schedule::Schedule schedule = schedule::AnyOrder();
  const std::vector<StageShape> stages = AnyStages(schedule.num_stages);
  const auto programs =
      Lower(schedule, {.stages = stages, .merge_weight_grads = Uniform(0, 2) == 0});
  RC_ASSERT(programs.ok());
  for (const Program& program : *programs) {
    std::map<StageId, int> alive, peak, slots;
    for (const schedule::Action& action : schedule.ranks[program.pp_rank.value()]) {
      if (stages[action.stage.value()].recomputed_bytes == 0) continue;
      if (action.kind == schedule::ActionKind::kWeightGrad) --alive[action.stage];
      if (action.kind != schedule::ActionKind::kInputGrad) continue;
      peak[action.stage] = std::max(peak[action.stage], ++alive[action.stage]);
    }
    for (const Slot& slot : program.slots) {
      if (slot.kind == SlotKind::kRecomputed) ++slots[slot.stage];
    }
    RC_ASSERT(slots == peak);
  }
}

RC_GTEST_PROP(ProgramProperty, TheHoldersOfACopyReduceInOneOrder, ()) {
  const std::vector<Program> programs = AnyPrograms();
  const auto layers = [](const Program& program) {
    std::vector<LayerId> reduced;
    for (const Instruction& instruction : program.body) {
      if (instruction.op == Op::kReduceGrad) reduced.push_back(instruction.layer);
    }
    return reduced;
  };
  for (const Program& program : programs) {
    if (program.mirror.value() < 0) continue;
    RC_ASSERT(layers(program) == layers(programs[program.mirror.value()]));
  }
}

}  // namespace
}  // namespace takt::program
