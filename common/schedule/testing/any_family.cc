// SPDX-License-Identifier: Apache-2.0
#include "common/schedule/testing/any_family.h"

#include <vector>

#include "absl/status/statusor.h"
#include "rapidcheck.h"

namespace takt::schedule {
namespace {

double AnyCost() { return Uniform(0, 21) / 10.0; }

cost::Costs AnyCosts(int num_stages) {
  cost::Costs costs;
  const std::size_t values = Uniform(0, 2) == 0 ? 1 : num_stages;
  for (std::vector<double>* by_stage :
       {&costs.forward, &costs.input_grad, &costs.weight_grad, &costs.backward}) {
    by_stage->resize(values);
    for (double& value : *by_stage) value = AnyCost();
  }
  costs.link.latency = AnyCost() / 4;
  return costs;
}

}  // namespace

int Uniform(int low, int high) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(low, high));
}

GenerateOptions AnyOptions(const Family& family) {
  GenerateOptions options{.num_ranks = Uniform(1, 9), .num_microbatches = Uniform(1, 17)};
  if (family.uses_chunks) options.num_chunks = Uniform(1, 5);
  if (family.uses_group && Uniform(0, 2) == 0) options.group = Uniform(1, 17);
  if (family.uses_memory && Uniform(0, 2) == 0) options.memory = Uniform(1, 17);
  if (family.uses_costs) {
    options.costs = AnyCosts(options.num_ranks * options.num_chunks.value_or(family.num_chunks));
  }
  return options;
}

Schedule AnyFamily() {
  std::vector<Family> families(Families().begin(), Families().end());
  std::erase_if(families, [](const Family& one) { return one.updates != Updates::kFlush; });
  const Family& family = families[Uniform(0, static_cast<int>(families.size()))];
  // Every family serves a good part of these sizes. But when rapidcheck shrinks a case, it may draw
  // sizes that the family does not serve again and again.
  for (int attempt = 0; attempt < 100; ++attempt) {
    absl::StatusOr<Schedule> schedule = Generate(family.name, AnyOptions(family));
    if (schedule.ok()) return *std::move(schedule);
  }
  RC_DISCARD("no sizes that " + std::string(family.name) + " serves");
}

bool MaySpread(const Schedule& schedule) {
  if (schedule.updates != Updates::kFlush || schedule.placement == Placement::kBidirectional)
    return false;
  const StageId last(schedule.num_stages - 1);
  MicrobatchId next(0);
  for (const Action& action :
       schedule.ranks[RankOfStage(schedule.placement, schedule.num_ranks(), last).value()]) {
    if (action.stage != last || action.kind != ActionKind::kForward) continue;
    if (action.microbatch != next) return false;
    next = MicrobatchId(next.value() + 1);
  }
  return true;
}

}  // namespace takt::schedule
