// SPDX-License-Identifier: Apache-2.0
#include "common/control/rank_status_serde.h"

#include "common/base/time_serde.h"

namespace takt::control {

v1::RankStatus ToProto(const RankStatus& status) {
  v1::RankStatus proto;
  proto.set_rank(status.rank.value());
  proto.set_worker(status.worker);
  proto.set_last_step(status.last_step.value());
  proto.set_instruction(status.instruction);
  proto.set_waiting_for(status.waiting_for);
  proto.set_instruction_step(status.instruction_step.value());
  proto.set_instruction_seconds(status.instruction_seconds);
  if (status.time.has_value()) *proto.mutable_time() = takt::ToProto(*status.time);
  for (const DoneInstruction& done : status.recent) {
    v1::DoneInstruction& to = *proto.add_recent();
    to.set_instruction(done.instruction);
    to.set_step(done.step.value());
    to.set_seconds(done.seconds);
    to.set_ended_seconds_ago(done.ended_seconds_ago);
  }
  return proto;
}

RankStatus FromProto(const v1::RankStatus& proto) {
  RankStatus status{.rank = Rank(proto.rank()),
                    .worker = proto.worker(),
                    .last_step = StepId(proto.last_step()),
                    .instruction = proto.instruction(),
                    .waiting_for = proto.waiting_for(),
                    .instruction_step = StepId(proto.instruction_step()),
                    .instruction_seconds = proto.instruction_seconds()};
  if (proto.has_time()) status.time = takt::FromProto(proto.time());
  for (const v1::DoneInstruction& done : proto.recent()) {
    status.recent.push_back({.instruction = done.instruction(),
                             .step = StepId(done.step()),
                             .seconds = done.seconds(),
                             .ended_seconds_ago = done.ended_seconds_ago()});
  }
  return status;
}

}  // namespace takt::control
