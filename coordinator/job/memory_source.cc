// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/memory_source.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "common/base/version.h"
#include "common/plan/copies.h"

namespace takt::job {
namespace {

// Half of what copies may cost, since the times below are assumed.
constexpr double kMostOfAStep = 0.01;
// The pipeline empties and fills once more at each boundary. Assumed. Where steps run into one
// another, that is a part of a step: what ran ahead is lost, and runs again by itself.
constexpr double kBoundarySeconds = 200e-6, kRefilledSteps = 0.4;
// A copy from memory to memory where none was measured, and the way over the data plane with the
// hashes at both ends. Assumed.
constexpr double kCopySecondsPerByte = 0.5e-9, kSendSecondsPerByte = 1.5e-9;
constexpr double kMostSteps = 10'000;

std::int64_t ChooseInterval(const CopyFacts& facts, bool sends) {
  const double step = facts.plan.predicted_step_seconds;
  if (!(step > 0)) return 1;
  const auto bytes =
      static_cast<double>(plan::LargestCopyBytes(facts.plan.model, facts.plan.partition));
  const double pause = kBoundarySeconds +
                       (plan::OverlapsSteps(facts.plan) ? kRefilledSteps * step : 0) +
                       bytes * facts.seconds_per_byte.value_or(kCopySecondsPerByte);
  const double sending = sends ? bytes * kSendSecondsPerByte : 0;
  // A worker without a device sends on the cores on which it computes.
  const double lost = pause + (facts.device == config::DeviceKind::kCpu ? sending : 0);
  const double steps = std::max(lost / (kMostOfAStep * step), sending / step);
  return static_cast<std::int64_t>(std::clamp(std::ceil(steps), 1.0, kMostSteps));
}

// The planner leaves copies out where they do not fit.
bool HasRoom(const plan::Plan& plan) {
  const auto counts = [](const MemoryBytes& bytes) { return bytes[MemoryKind::kCopies] > 0; };
  return plan.memory.empty() || std::ranges::any_of(plan.memory, counts);
}

// Where ranks split layers, the other rank has the same part of them: the shift is a multiple of
// tp_size.
int ChooseShift(const std::vector<std::string>& host_names, int tp_size) {
  std::map<std::string, int> numbers;
  std::vector<int> hosts;  // by rank
  for (const std::string& name : host_names)
    hosts.push_back(numbers.try_emplace(name, static_cast<int>(numbers.size())).first->second);
  if (numbers.size() < 2) return tp_size;
  const int size = static_cast<int>(hosts.size());
  int best = tp_size, most = -1;
  // Where the ranks of a host follow one another, the size of the largest host is enough.
  for (int shift = tp_size; shift < size && most < size; shift += tp_size) {
    int apart = 0;
    for (int rank = 0; rank < size; ++rank) apart += hosts[rank] != hosts[(rank + shift) % size];
    if (apart <= most) continue;
    best = shift;
    most = apart;
  }
  return best;
}

}  // namespace

CopyPlan PlanCopies(const CopyFacts& facts) {
  const plan::CopyInputs inputs{.job = facts.spec,
                                .schedule = facts.plan.schedule,
                                .mesh = facts.plan.mesh,
                                .device = facts.device,
                                .shares = plan::SharesOptimizer(facts.plan)};
  CopyPlan result{.why_none = plan::WhyNoCopies(inputs)};
  const bool needs_all = plan::NeedsAllCopies(facts.spec, facts.device);
  result.may_restore = !needs_all || facts.oldest_protocol >= kAllCopiesProtocolVersion;
  if (result.why_none.empty() &&
      (!result.may_restore || facts.oldest_protocol < kCopiesProtocolVersion))
    result.why_none = "a worker's program is too old for them";
  const std::int64_t asked = facts.spec.copy_every_steps;
  if (result.why_none.empty() && !plan::AsksForCopies(facts.spec) && !HasRoom(facts.plan))
    result.why_none = "they do not fit into the workers' memory";
  if (!result.why_none.empty()) return result;
  const bool sends = plan::CopiesKept(inputs).peer > 0;
  result.copies.every_steps = asked == config::kAutoCopies ? ChooseInterval(facts, sends) : asked;
  if (sends) result.copies.shift = ChooseShift(facts.hosts, inputs.mesh.tp_size);
  return result;
}

}  // namespace takt::job
