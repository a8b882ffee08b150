// SPDX-License-Identifier: Apache-2.0
#include "coordinator/placement/queue.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/counted.h"
#include "coordinator/placement/timeline.h"
#include "coordinator/placement/victims.h"
#include "coordinator/placement/waiting_reason.h"
#include "coordinator/placement/worker_kinds.h"

namespace takt::placement {
namespace {

// A held worker is idle no sooner than this, however soon its job ends.
constexpr double kSoonSeconds = 1e-3;
// This long a job takes until it is paused. Nobody is paused for a job that starts sooner anyway.
constexpr double kPauseSeconds = 60;

// Returns for how long the job holds its gang. If that is not known, it ends after the workers that
// are held for an unknown time are free, so that it does not start on workers that are reserved
// from then on.
double SecondsOf(const WaitingJob& job) { return job.seconds.value_or(2 * kUnknownSeconds); }

// Does the work of one call of GrantGangs. Jobs are served in the order of the queue.
class Round final {
 public:
  // order: of indices of `waiting`, in which the jobs will be served.
  Round(const std::vector<WaitingJob>& waiting, const std::vector<std::size_t>& order,
        const Capacity& capacity);
  Grant Serve(const WaitingJob& job);

 private:
  using Slot = Timeline::Slot;

  void AddOwners(const std::vector<WaitingJob>& waiting);
  // Returns the index of the resource that limits the owner, 0 if it is not limited.
  std::size_t QuotaOf(const std::string& owner) const;
  // Counts workers by kind. The other resources are 0.
  Amounts CountByKind(const std::vector<GangWorker>& workers) const;
  // Returns what the job of this holder gives back when it ends.
  Amounts AmountsOf(const Holder& holder) const;
  // Returns what the job takes where `free` is free: with `up_to_all` as many workers as it may.
  std::optional<Amounts> Choose(const WaitingJob& job, const Amounts& free, bool up_to_all) const;
  // Returns how many of the free workers a job with `up_to_all` takes.
  int MostFor(const WaitingJob& job, const Amounts& free) const;
  // Returns the earliest slot of the job that begins at `latest` or before.
  std::optional<Slot> EarliestFor(const WaitingJob& job, const Timeline& timeline,
                                  double latest = kForever) const;
  int NumWorkers(const Amounts& amounts) const;
  bool IsOverQuota(const WaitingJob& job, Grant& grant);
  void ServeGrowth(const WaitingJob& job, Grant& grant);
  void Reserve(const WaitingJob& job, Slot slot);
  // Keeps the workers with the only state of a job that is not granted its gang from all later
  // ones. slot: what the job reserves, of these workers or of others; null: nothing.
  void Withhold(const WaitingJob& job, const Slot* slot);
  void GrantNow(const WaitingJob& job, const Amounts& taken, Grant& grant);
  // Returns whether each idle worker belongs to a whole group that its host can hold.
  std::vector<bool> InWholeGroups(const WaitingJob& job, const Amounts& taken) const;
  // Returns the indices of idle workers as the job takes them. Within a kind, those that it prefers
  // come first, then those of whole groups, those that it blames, and those with the only state of
  // other jobs; of these the ones of jobs that come late come first.
  std::vector<std::size_t> InTurn(const WaitingJob& job, const Amounts& taken) const;
  std::vector<std::string> Preempt(const WaitingJob& job);
  std::string Reason(const WaitingJob& job, const Grant& grant) const;

  const Capacity& capacity_;
  const WorkerKinds kinds_;
  std::map<std::string, std::size_t> quota_by_owner_;  // index of the resource
  std::vector<GangWorker> idle_;                       // neither granted nor withheld yet
  std::vector<GangWorker> withheld_;                   // idle
  std::map<std::string, int> only_state_of_;           // a job's place in the order, by worker
  std::map<std::string, int> held_;                    // as Obstacles::held
  std::map<std::string, int> held_by_owner_;
  std::map<const Holder*, double> ends_;
  std::vector<std::string> reserving_;  // jobs with a reservation of workers
  int num_reservations_ = 0;            // of workers or of a place in a quota
  Timeline timeline_;
};

std::vector<GangWorker> AllWorkers(const Capacity& capacity) {
  std::vector<GangWorker> all = capacity.idle;
  for (const Holder& holder : capacity.held)
    all.insert(all.end(), holder.workers.begin(), holder.workers.end());
  return all;
}

Round::Round(const std::vector<WaitingJob>& waiting, const std::vector<std::size_t>& order,
             const Capacity& capacity)
    : capacity_(capacity), kinds_(AllWorkers(capacity)), idle_(capacity.idle), timeline_({}) {
  AddOwners(waiting);
  for (int turn = 0; turn < std::ssize(order); ++turn) {
    const WaitingJob& job = waiting[order[turn]];
    if (!job.keeps_preferred) continue;
    for (const std::string& worker : job.preferred) only_state_of_.try_emplace(worker, turn);
  }
  Amounts free = CountByKind(idle_);
  for (const auto& [owner, index] : quota_by_owner_)
    free[index] = *capacity.quotas.Of(owner) - held_by_owner_[owner];
  timeline_ = Timeline(std::move(free));
  for (const Holder& holder : capacity.held) {
    held_[absl::StrCat(holder.name, holder.halting ? " (halting)" : "")] += holder.num_workers();
    const double end = std::max(holder.ends_in.value_or(kUnknownSeconds), kSoonSeconds);
    ends_[&holder] = end;
    timeline_.Add(end, kForever, AmountsOf(holder));
  }
}

void Round::AddOwners(const std::vector<WaitingJob>& waiting) {
  for (const Holder& holder : capacity_.held) held_by_owner_[holder.owner] += holder.num_workers();
  for (const WaitingJob& job : waiting) {
    if (capacity_.quotas.Of(job.owner))
      quota_by_owner_.try_emplace(job.owner, kinds_.size() + quota_by_owner_.size());
  }
}

std::size_t Round::QuotaOf(const std::string& owner) const {
  const auto it = quota_by_owner_.find(owner);
  return it == quota_by_owner_.end() ? 0 : it->second;
}

Amounts Round::CountByKind(const std::vector<GangWorker>& workers) const {
  Amounts amounts(kinds_.size() + quota_by_owner_.size());
  for (const GangWorker& worker : workers) ++amounts[kinds_.IndexOf(worker)];
  return amounts;
}

Amounts Round::AmountsOf(const Holder& holder) const {
  Amounts amounts = CountByKind(holder.workers);
  if (const std::size_t quota = QuotaOf(holder.owner); quota > 0)
    amounts[quota] = holder.num_workers();
  return amounts;
}

std::optional<Amounts> Round::Choose(const WaitingJob& job, const Amounts& free,
                                     bool up_to_all) const {
  const Need& need = job.need;
  const std::size_t quota = QuotaOf(job.owner);
  int most = up_to_all ? MostFor(job, free) : need.workers;
  if (quota > 0) most = std::min(most, free[quota]);
  Amounts taken(free.size());
  int number = 0;
  std::set<std::string_view> shared_gpus;  // that the job takes
  for (std::size_t k = 0; k < kinds_.size() && number < most; ++k) {
    const WorkerKind& kind = kinds_[k];
    if (!placement::Serves(kind, need)) continue;
    int usable = free[k];
    // NCCL does not allow two ranks on one GPU. Workers on one may be of several kinds.
    if (need.nccl && kind.shares_gpu)
      usable = shared_gpus.contains(kind.gpu) ? 0 : std::min(usable, 1);
    taken[k] = std::clamp(usable, 0, most - number);
    if (taken[k] > 0 && kind.shares_gpu) shared_gpus.insert(kind.gpu);
    number += taken[k];
  }
  if (number < need.workers) return std::nullopt;
  if (quota > 0) taken[quota] = number;
  return taken;
}

int Round::MostFor(const WaitingJob& job, const Amounts& free) const {
  const auto shunned = std::ranges::count_if(idle_, [&](const GangWorker& worker) {
    const auto blamed = job.blamed.find(worker.name);
    return blamed != job.blamed.end() && blamed->second > 1 && kinds_.Serves(worker, job.need);
  });
  int serving = 0;
  for (std::size_t k = 0; k < kinds_.size(); ++k) {
    if (placement::Serves(kinds_[k], job.need)) serving += std::max(free[k], 0);
  }
  const int most = std::min(serving - static_cast<int>(shunned), job.need.most.value_or(serving));
  return std::max(job.need.workers, most);
}

std::optional<Timeline::Slot> Round::EarliestFor(const WaitingJob& job, const Timeline& timeline,
                                                 double latest) const {
  return timeline.Earliest(SecondsOf(job), latest, [&](const Amounts& free) {
    return Choose(job, free, job.need.up_to_all);
  });
}

int Round::NumWorkers(const Amounts& amounts) const {
  int number = 0;
  for (std::size_t k = 0; k < kinds_.size(); ++k) number += amounts[k];
  return number;
}

Grant Round::Serve(const WaitingJob& job) {
  Grant grant;
  if (job.grows) {
    ServeGrowth(job, grant);
    return grant;
  }
  if (IsOverQuota(job, grant)) {
    Withhold(job, nullptr);
    return grant;
  }
  const bool may_reserve = num_reservations_ < kMaxReservations;
  std::optional<Slot> slot = EarliestFor(job, timeline_, may_reserve ? kForever : 0);
  if (slot && slot->from == 0 && !job.stopping) {
    GrantNow(job, slot->taken, grant);
    return grant;
  }
  if (slot && slot->from > kPauseSeconds && !job.stopping) {
    grant.preempts = Preempt(job);
    if (!grant.preempts.empty()) slot = EarliestFor(job, timeline_);
  }
  if (slot && may_reserve) grant.reserved_in = slot->from;
  grant.reason = Reason(job, grant);
  if (!may_reserve)
    absl::StrAppend(&grant.reason, "; ", kMaxReservations, " jobs before it reserve workers");
  const bool reserves = slot && may_reserve;
  Withhold(job, reserves ? &*slot : nullptr);
  if (reserves) Reserve(job, *std::move(slot));
  return grant;
}

// A job that is over its quota reserves no workers. It reserves its place in the quota, so that
// smaller jobs of the same owner do not take it for ever.
bool Round::IsOverQuota(const WaitingJob& job, Grant& grant) {
  const std::size_t quota = QuotaOf(job.owner);
  // The workers that a stopping job holds itself are free when it waits.
  if (quota == 0 || job.stopping) return false;
  const int held = held_by_owner_[job.owner], limit = *capacity_.quotas.Of(job.owner);
  if (held + job.need.workers <= limit) return false;
  grant.reason = WhyOverQuota(job, limit, held);
  const double seconds = SecondsOf(job);
  const auto choose = [&](const Amounts& free) -> std::optional<Amounts> {
    if (free[quota] < job.need.workers) return std::nullopt;
    Amounts taken(free.size());
    taken[quota] = job.need.workers;
    return taken;
  };
  if (num_reservations_ == kMaxReservations) return true;
  if (const auto slot = timeline_.Earliest(seconds, kForever, choose)) {
    timeline_.Take(slot->from, slot->from + seconds, slot->taken);
    ++num_reservations_;
  }
  return true;
}

void Round::ServeGrowth(const WaitingJob& job, Grant& grant) {
  if (const std::optional<Slot> slot = EarliestFor(job, timeline_, /*latest=*/0))
    GrantNow(job, slot->taken, grant);
}

void Round::Reserve(const WaitingJob& job, Slot slot) {
  // What is reserved was free, so as many of it as the job needs at least are free too.
  const std::optional<Amounts> least = Choose(job, slot.taken, /*up_to_all=*/false);
  timeline_.Take(slot.from, slot.from + SecondsOf(job), *least);
  reserving_.push_back(job.name);
  ++num_reservations_;
}

void Round::Withhold(const WaitingJob& job, const Slot* slot) {
  if (!job.keeps_preferred) return;
  std::vector<GangWorker> rest, kept;
  for (GangWorker& worker : idle_)
    (job.preferred.contains(worker.name) ? kept : rest).push_back(std::move(worker));
  idle_ = std::move(rest);
  if (kept.empty()) return;
  Amounts amounts = CountByKind(kept);
  withheld_.insert(withheld_.end(), kept.begin(), kept.end());
  const double from = slot != nullptr ? slot->from : kForever;
  if (from > 0) timeline_.Take(0, from, amounts);
  if (slot == nullptr) {
    reserving_.push_back(job.name);
    return;
  }
  // Of each kind as many are taken from then on as it keeps or reserves, whatever is more.
  const std::optional<Amounts> least = Choose(job, slot->taken, /*up_to_all=*/false);
  for (std::size_t k = 0; k < kinds_.size(); ++k)
    amounts[k] = std::max(amounts[k] - (*least)[k], 0);
  timeline_.Take(from, kForever, std::move(amounts));
}

std::vector<bool> Round::InWholeGroups(const WaitingJob& job, const Amounts& taken) const {
  if (job.need.group == 1) return std::vector<bool>(idle_.size(), true);
  const auto usable = [&](const GangWorker& worker) {
    const bool others =
        only_state_of_.contains(worker.name) && !job.preferred.contains(worker.name);
    return taken[kinds_.IndexOf(worker)] > 0 && !job.blamed.contains(worker.name) && !others;
  };
  std::map<std::string_view, int> left;  // of the workers of each host's whole groups
  for (const GangWorker& worker : idle_) left[worker.host] += usable(worker);
  for (auto& [host, number] : left) number -= number % job.need.group;
  std::vector<bool> in_group;
  for (const GangWorker& worker : idle_)
    in_group.push_back(usable(worker) && left[worker.host]-- > 0);
  return in_group;
}

std::vector<std::size_t> Round::InTurn(const WaitingJob& job, const Amounts& taken) const {
  const std::vector<bool> in_group = InWholeGroups(job, taken);
  const auto turn_of = [&](std::size_t i) {
    const std::string& name = idle_[i].name;
    if (job.preferred.contains(name) && !job.blamed.contains(name)) return std::pair(0, 0);
    const auto keeps = only_state_of_.find(name);
    if (keeps != only_state_of_.end() && !job.preferred.contains(name))
      return std::pair(4, -keeps->second);
    return std::pair(job.blamed.contains(name) ? 3 : in_group[i] ? 1 : 2, 0);
  };
  std::vector<std::size_t> order(idle_.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, turn_of);
  return order;
}

void Round::GrantNow(const WaitingJob& job, const Amounts& taken, Grant& grant) {
  timeline_.Take(0, SecondsOf(job), taken);
  Amounts missing = taken;
  std::vector<GangWorker> gang, rest;
  std::vector<bool> chosen(idle_.size());
  for (const std::size_t i : InTurn(job, taken)) {
    int& number = missing[kinds_.IndexOf(idle_[i])];
    if (number == 0) continue;
    chosen[i] = true;
    --number;
  }
  for (std::size_t i = 0; i < idle_.size(); ++i)
    (chosen[i] ? gang : rest).push_back(std::move(idle_[i]));
  idle_ = std::move(rest);
  if (job.need.device != config::DeviceKind::kCuda)
    std::ranges::stable_sort(gang, {}, &GangWorker::has_gpu);
  for (const GangWorker& worker : gang) grant.workers.push_back(worker.name);
  const int number = static_cast<int>(gang.size());
  held_[job.name] += number;
  held_by_owner_[job.owner] += number;
  grant.reason = absl::StrCat("got ", Counted(number, "worker"));
}

// Chooses the jobs that are paused for this one, and counts their workers as free from then on.
std::vector<std::string> Round::Preempt(const WaitingJob& job) {
  Victims candidates;
  for (const Holder& holder : capacity_.held) {
    const bool may = holder.can_pause && holder.priority < job.priority;
    if (!may || ends_[&holder] <= kPauseSeconds) continue;
    const int useful = static_cast<int>(std::ranges::count_if(
        holder.workers, [&](const GangWorker& w) { return kinds_.Serves(w, job.need); }));
    if (useful > 0) candidates.push_back({.holder = &holder, .num_useful = useful});
  }
  if (candidates.empty()) return {};
  const auto without = [&](const Victims& victims) {
    Timeline timeline = timeline_;
    for (const Victim& victim : victims)
      timeline.Add(kPauseSeconds, ends_[victim.holder], AmountsOf(*victim.holder));
    return timeline;
  };
  const Victims victims = ChooseVictims(candidates, [&](const Victims& trial) {
    return EarliestFor(job, without(trial), kPauseSeconds).has_value();
  });
  timeline_ = without(victims);
  std::vector<std::string> names;
  for (const Victim& victim : victims) {
    ends_[victim.holder] = kPauseSeconds;
    names.push_back(victim.holder->name);
  }
  return names;
}

std::string Round::Reason(const WaitingJob& job, const Grant& grant) const {
  // All that are idle, whoever reserves them.
  std::vector<GangWorker> workers = idle_;
  workers.insert(workers.end(), withheld_.begin(), withheld_.end());
  int unfit = 0, old = 0, serving = 0;
  for (const GangWorker& worker : workers) {
    if (worker.protocol < job.need.protocol) {
      ++old;
    } else if (!kinds_.Serves(worker, job.need)) {
      ++unfit;
    } else {
      ++serving;
    }
  }
  Amounts idle = CountByKind(workers);  // and then those of them that would serve it
  for (const auto& [owner, quota] : quota_by_owner_) idle[quota] = std::numeric_limits<int>::max();
  WaitingJob any = job;
  any.need.workers = 0;
  any.blamed.clear();
  const int num_idle = NumWorkers(*Choose(any, idle, /*up_to_all=*/true));
  return WhyItWaits({.need = job.need,
                     .num_idle = num_idle,
                     .num_unfit = unfit,
                     .num_old = old,
                     .num_sharing = serving - num_idle,
                     .held = held_,
                     .drained = capacity_.drained,
                     .leaving = capacity_.leaving,
                     .quarantined = capacity_.quarantined,
                     .reserved_for = reserving_,
                     .reserved_in = grant.reserved_in,
                     .preempts = grant.preempts});
}

}  // namespace

std::vector<Grant> GrantGangs(const std::vector<WaitingJob>& waiting, const Capacity& capacity) {
  std::vector<std::size_t> order(waiting.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](std::size_t i) {
    const WaitingJob& job = waiting[i];
    return std::tuple(job.grows, !job.recovers, -job.priority, job.number);
  });
  Round round(waiting, order, capacity);
  std::vector<Grant> grants(waiting.size());
  for (const std::size_t i : order) grants[i] = round.Serve(waiting[i]);
  return grants;
}

}  // namespace takt::placement
