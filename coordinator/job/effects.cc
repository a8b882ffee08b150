// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/effects.h"

#include "common/base/overloaded.h"

namespace takt::job {

void CarryOut(const Effect& effect, const EffectTargets& targets) {
  const auto answer = [](const auto& it) { it.reply(it.result); };
  std::visit(Overloaded{
                 [&](const Answer<store::JobRecord>& it) { answer(it); },
                 [&](const Answer<membership::Worker>& it) { answer(it); },
                 [&](const Answer<bool>& it) { answer(it); },
                 [](const SendCommand& it) { it.session->Send(it.command); },
                 [](const CloseSession& it) { it.session->Close(it.status); },
                 [](const AcknowledgeReports& it) { it.session->Acknowledge(it.acknowledged); },
                 [&](const OpenRendezvous& it) {
                   targets.rendezvous->Open(it.key.job, it.key.generation, it.num_ranks);
                 },
                 [&](const CloseRendezvous& it) { targets.rendezvous->Close(it.job); },
                 [&](const MakePlan& it) { targets.plan(it); },
                 [&](const Replan& it) { targets.replan(it); },
                 [&](const BeginGeneration& it) {
                   if (targets.on_launch) targets.on_launch(*it.launch);
                 },
                 [&](const ForgetJob& it) {
                   if (targets.on_delete) targets.on_delete(it.job);
                 },
             },
             effect);
}

void FlushSessions(const std::vector<Effect>& effects) {
  for (const Effect& effect : effects) {
    std::visit(
        Overloaded{[](const SendCommand& it) { it.session->Flush(); },
                   [](const AcknowledgeReports& it) { it.session->Flush(); }, [](const auto&) {}},
        effect);
  }
}

void AnswerWithout(std::vector<Effect>& effects, const absl::Status& why) {
  const auto answer = [&](const auto& it) {
    it.reply(it.result.ok() ? why : it.result.status());
    return true;
  };
  std::erase_if(effects, [&](const Effect& effect) {
    return std::visit(Overloaded{
                          [&](const Answer<store::JobRecord>& it) { return answer(it); },
                          [&](const Answer<membership::Worker>& it) { return answer(it); },
                          [&](const Answer<bool>& it) { return answer(it); },
                          [](const auto&) { return false; },
                      },
                      effect);
  });
}

}  // namespace takt::job
