// SPDX-License-Identifier: Apache-2.0
// Random clusters and jobs: what GrantGangs promises whatever they are.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "coordinator/placement/queue.h"
#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"

namespace takt::placement {
namespace {

using config::DeviceKind;
using model::Fp8Recipe;

const std::vector<std::string>& Owners() {
  static const auto* const owners = new std::vector<std::string>{"ada", "bob"};
  return *owners;
}

Fp8Recipe AnyRecipe() {
  return *rc::gen::element(Fp8Recipe::kNone, Fp8Recipe::kTensor, Fp8Recipe::kBlock);
}

GangWorker AnyWorker(int number) {
  const bool has_gpu = *rc::gen::inRange(0, 3) == 0;
  return {.name = "w" + std::to_string(number),
          .has_gpu = has_gpu,
          .has_nccl = has_gpu && *rc::gen::arbitrary<bool>(),
          .gpu = has_gpu ? std::to_string(*rc::gen::inRange(0, 4)) : "",
          .fp8 = has_gpu ? AnyRecipe() : Fp8Recipe::kNone};
}

std::optional<double> AnySeconds() {
  if (*rc::gen::inRange(0, 5) == 0) return std::nullopt;
  return *rc::gen::inRange(1, 200);
}

WaitingJob AnyJob(int number, int max_workers) {
  WaitingJob job{.name = "j" + std::to_string(number),
                 .need = {.workers = *rc::gen::inRange(1, max_workers + 1),
                          .up_to_all = *rc::gen::inRange(0, 6) == 0},
                 .recovers = *rc::gen::inRange(0, 6) == 0,
                 .stopping = *rc::gen::inRange(0, 8) == 0,
                 .priority = *rc::gen::element(10, 50, 90),
                 .number = number,
                 .seconds = AnySeconds(),
                 .owner = *rc::gen::elementOf(Owners())};
  for (int w = 0; *rc::gen::inRange(0, 2) == 0 && w < 8; ++w)
    job.preferred.insert("w" + std::to_string(*rc::gen::inRange(0, 8)));
  job.keeps_preferred = *rc::gen::arbitrary<bool>();
  if (*rc::gen::inRange(0, 3) == 0) job.need.device = DeviceKind::kCuda;
  if (*rc::gen::inRange(0, 3) == 0) job.need.fp8 = AnyRecipe();
  job.need.nccl = job.need.device == DeviceKind::kCuda && *rc::gen::arbitrary<bool>();
  return job;
}

Capacity AnyCapacity() {
  Capacity capacity;
  int num_workers = 0;
  const int num_idle = *rc::gen::inRange(0, 8);
  while (num_workers < num_idle) capacity.idle.push_back(AnyWorker(num_workers++));
  const int num_held = *rc::gen::inRange(0, 4);
  for (int i = 0; i < num_held; ++i) {
    Holder& holder = capacity.held.emplace_back();
    holder.name = "h" + std::to_string(i);
    const int size = *rc::gen::inRange(1, 4);
    for (int w = 0; w < size; ++w) holder.workers.push_back(AnyWorker(num_workers++));
    holder.num_others = *rc::gen::inRange(0, 2);
    holder.ends_in = AnySeconds();
    holder.owner = *rc::gen::elementOf(Owners());
    holder.priority = *rc::gen::element(10, 50);
    holder.can_pause = *rc::gen::arbitrary<bool>();
    holder.held_seconds = *rc::gen::inRange(0, 10);
  }
  if (*rc::gen::arbitrary<bool>()) capacity.quotas = Quotas({{"ada", *rc::gen::inRange(1, 9)}});
  return capacity;
}

std::vector<WaitingJob> AnyJobs() {
  std::vector<WaitingJob> jobs;
  const int count = *rc::gen::inRange(0, 8);
  for (int i = 0; i < count; ++i) jobs.push_back(AnyJob(i, 8));
  return jobs;
}

bool ComesBefore(const WaitingJob& a, const WaitingJob& b) {
  return std::tuple(!a.recovers, -a.priority, a.number) <
         std::tuple(!b.recovers, -b.priority, b.number);
}

RC_GTEST_PROP(GrantGangsProperty, GangsAreOfIdleWorkersThatServeAndDisjoint, ()) {
  const Capacity capacity = AnyCapacity();
  const std::vector<WaitingJob> jobs = AnyJobs();
  const auto grants = GrantGangs(jobs, capacity);
  std::map<std::string, GangWorker> idle;
  for (const GangWorker& worker : capacity.idle) idle[worker.name] = worker;
  std::map<std::string, int> by_owner;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const Need& need = jobs[i].need;
    const auto size = static_cast<int>(grants[i].workers.size());
    RC_ASSERT(!grants[i].reason.empty());
    RC_ASSERT(size == 0 || size == need.workers || (need.up_to_all && size > need.workers));
    RC_ASSERT(size == 0 ||
              (!jobs[i].stopping && !grants[i].reserved_in && grants[i].preempts.empty()));
    std::set<std::string> gpus;
    for (const std::string& name : grants[i].workers) {
      RC_ASSERT(idle.contains(name));
      const GangWorker worker = idle.extract(name).mapped();
      if (need.device == DeviceKind::kCuda) RC_ASSERT(worker.has_gpu && worker.fp8 >= need.fp8);
      if (need.nccl) RC_ASSERT(worker.has_nccl && gpus.insert(worker.gpu).second);
    }
    if (size > 0) by_owner[jobs[i].owner] += size;
  }
  for (const Holder& holder : capacity.held) {
    if (by_owner.contains(holder.owner)) by_owner[holder.owner] += holder.num_workers();
  }
  for (const auto& [owner, held] : by_owner)
    RC_ASSERT(held <= capacity.quotas.Of(owner).value_or(held));
}

RC_GTEST_PROP(GrantGangsProperty, LaterJobsChangeNothingForEarlierOnes, ()) {
  const Capacity capacity = AnyCapacity();
  std::vector<WaitingJob> jobs = AnyJobs();
  std::ranges::sort(jobs, ComesBefore);
  const bool any_keeps = std::ranges::any_of(jobs, &WaitingJob::keeps_preferred);
  const auto all = GrantGangs(jobs, capacity);
  while (!jobs.empty()) {
    jobs.pop_back();
    const auto first = GrantGangs(jobs, capacity);
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      // It may get other workers of the same kinds, if its own have the only state of a later job.
      RC_ASSERT(first[i].workers.size() == all[i].workers.size());
      if (!any_keeps) RC_ASSERT(first[i].workers == all[i].workers);
      RC_ASSERT(first[i].reserved_in == all[i].reserved_in);
      RC_ASSERT(first[i].reason == all[i].reason);
      RC_ASSERT(first[i].preempts == all[i].preempts);
    }
  }
}

RC_GTEST_PROP(GrantGangsProperty, TheOrderOfTheArgumentsDoesNotMatter, ()) {
  const Capacity capacity = AnyCapacity();
  std::vector<WaitingJob> jobs = AnyJobs();
  const auto grants = GrantGangs(jobs, capacity);
  std::ranges::reverse(jobs);
  const auto reversed = GrantGangs(jobs, capacity);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    RC_ASSERT(grants[i].workers == reversed[jobs.size() - 1 - i].workers);
    RC_ASSERT(grants[i].reason == reversed[jobs.size() - 1 - i].reason);
  }
}

RC_GTEST_PROP(GrantGangsProperty, VictimsHaveLowerPrioritiesAndAreNamedOnce, ()) {
  const Capacity capacity = AnyCapacity();
  const std::vector<WaitingJob> jobs = AnyJobs();
  const auto grants = GrantGangs(jobs, capacity);
  std::set<std::string> victims;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    for (const std::string& name : grants[i].preempts) {
      const auto victim = std::ranges::find(capacity.held, name, &Holder::name);
      RC_ASSERT(victim != capacity.held.end());
      RC_ASSERT(victim->can_pause && victim->priority < jobs[i].priority);
      RC_ASSERT(victims.insert(name).second);
    }
  }
}

// Lets jobs come, run and end. All durations are as predicted.
class Rehearsal final {
 public:
  explicit Rehearsal(std::vector<GangWorker> workers) : workers_(std::move(workers)) {}

  // Grants what can be granted now. No job may start later than was promised to it first.
  void Serve(double now, std::vector<WaitingJob>& waiting) {
    std::erase_if(running_, [&](const auto& entry) { return entry.second.ends_in <= now; });
    const auto grants = GrantGangs(waiting, CapacityAt(now));
    std::vector<WaitingJob> left;
    for (std::size_t i = 0; i < grants.size(); ++i) {
      const WaitingJob& job = waiting[i];
      const double from = grants[i].workers.empty() ? *grants[i].reserved_in : 0;
      const double promised = promises_.try_emplace(job.name, now + from).first->second;
      RC_ASSERT(now + from <= promised);
      if (grants[i].workers.empty()) {
        left.push_back(job);
      } else {
        Start(job, grants[i].workers, now);
      }
    }
    waiting = left;
  }

  double NextEnd() const {
    double next = 1e18;
    for (const auto& [name, holder] : running_) next = std::min(next, *holder.ends_in);
    return next;
  }

 private:
  void Start(const WaitingJob& job, const std::vector<std::string>& gang, double now) {
    Holder& holder = running_[job.name];
    holder = {.name = job.name, .ends_in = now + *job.seconds};
    for (const std::string& name : gang)
      holder.workers.push_back(*std::ranges::find(workers_, name, &GangWorker::name));
  }

  Capacity CapacityAt(double now) const {
    Capacity capacity{.idle = workers_};
    for (const auto& [name, running] : running_) {
      Holder& holder = capacity.held.emplace_back(running);
      *holder.ends_in -= now;
      for (const GangWorker& held : holder.workers) {
        std::erase_if(capacity.idle, [&](const GangWorker& w) { return w.name == held.name; });
      }
    }
    return capacity;
  }

  const std::vector<GangWorker> workers_;
  std::map<std::string, Holder> running_;  // ends_in is an absolute time here
  std::map<std::string, double> promises_;
};

RC_GTEST_PROP(GrantGangsProperty, NoReservationIsEverDelayed, ()) {
  const int num_workers = *rc::gen::inRange(1, 9);
  std::vector<GangWorker> workers;
  for (int i = 0; i < num_workers; ++i) workers.push_back(AnyWorker(i));
  const auto num_gpus = std::ranges::count_if(workers, &GangWorker::has_gpu);
  Rehearsal rehearsal(workers);
  std::vector<WaitingJob> waiting;
  double now = 0;
  const int num_jobs = *rc::gen::inRange(1, 12);
  for (int i = 0; i < num_jobs; ++i) {
    const bool on_gpu = num_gpus > 0 && *rc::gen::inRange(0, 3) == 0;
    const int most = on_gpu ? static_cast<int>(num_gpus) : num_workers;
    waiting.push_back({.name = "j" + std::to_string(i),
                       .need = {.workers = *rc::gen::inRange(1, most + 1),
                                .device = on_gpu ? DeviceKind::kCuda : DeviceKind::kCpu},
                       .number = i,
                       .seconds = *rc::gen::inRange(1, 20)});
    const double arrival = now + *rc::gen::inRange(0, 10);
    while (rehearsal.NextEnd() <= arrival) {
      now = rehearsal.NextEnd();
      rehearsal.Serve(now, waiting);
    }
    now = arrival;
    rehearsal.Serve(now, waiting);
  }
  while (!waiting.empty()) {
    now = rehearsal.NextEnd();
    RC_ASSERT(now < 1e18);
    rehearsal.Serve(now, waiting);
  }
}

}  // namespace
}  // namespace takt::placement
