// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/queue_simulation.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/placement/queue.h"

namespace takt::bench {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// The world of one simulation.
class Simulation final {
 public:
  Simulation(const std::vector<SimulatedJob>& jobs, int workers, QueuePolicy policy)
      : jobs_(jobs), policy_(policy) {
    for (int i = 0; i < workers; ++i) idle_.push_back({.name = absl::StrCat("w", i)});
    outcome_.starts.resize(jobs.size());
    outcome_.promises.resize(jobs.size(), kNever);
  }

  QueueOutcome Run() {
    std::size_t next = 0;
    while (next < jobs_.size() || !waiting_.empty()) {
      const double arrival = next < jobs_.size() ? jobs_[next].arrival : kNever;
      const double end = running_.empty() ? kNever : running_.begin()->first;
      now_ = std::min(arrival, end);
      if (arrival <= end) {
        waiting_.push_back(next++);
      } else {
        End();
      }
      const absl::Time begin = absl::Now();
      Serve();
      outcome_.serve_seconds += absl::ToDoubleSeconds(absl::Now() - begin);
      outcome_.most_waiting = std::max(outcome_.most_waiting, static_cast<int>(waiting_.size()));
    }
    return std::move(outcome_);
  }

 private:
  struct Gang {
    std::size_t job = 0;
    std::vector<placement::GangWorker> workers;
  };

  void End() {
    auto& gang = running_.begin()->second.workers;
    std::ranges::move(gang, std::back_inserter(idle_));
    running_.erase(running_.begin());
  }

  void Start(std::size_t job) {
    const auto first = idle_.end() - jobs_[job].workers;
    outcome_.starts[job] = now_;
    running_.emplace(now_ + jobs_[job].seconds,
                     Gang{job, {std::move_iterator(first), std::move_iterator(idle_.end())}});
    idle_.erase(first, idle_.end());
  }

  void Serve() {
    if (policy_ == QueuePolicy::kReserve) return ServeByReservation();
    std::vector<std::size_t> left;
    for (const std::size_t job : waiting_) {
      const bool fits = jobs_[job].workers <= static_cast<int>(idle_.size());
      const bool overtakes = !left.empty() && policy_ == QueuePolicy::kFirstComeFirstServed;
      if (fits && !overtakes) {
        Start(job);
      } else {
        left.push_back(job);
      }
    }
    waiting_ = std::move(left);
  }

  void ServeByReservation() {
    std::vector<placement::WaitingJob> waiting;
    for (const std::size_t job : waiting_) {
      waiting.push_back({.name = absl::StrCat(job),
                         .need = {.workers = jobs_[job].workers},
                         .number = static_cast<std::int64_t>(job),
                         .seconds = jobs_[job].predicted});
    }
    placement::Capacity capacity{.idle = idle_};
    for (const auto& [end, run] : running_) {
      const SimulatedJob& job = jobs_[run.job];
      // The prediction is wrong by the same factor until the end.
      capacity.held.push_back({.name = absl::StrCat(run.job),
                               .workers = run.workers,
                               .ends_in = (end - now_) * job.predicted / job.seconds});
    }
    const std::vector<placement::Grant> grants = placement::GrantGangs(waiting, capacity);
    std::vector<std::size_t> left;
    for (std::size_t i = 0; i < grants.size(); ++i) {
      const std::size_t job = waiting_[i];
      double& promise = outcome_.promises[job];
      const bool waits = grants[i].workers.empty();
      if (promise == kNever && (!waits || grants[i].reserved_in))
        promise = now_ + grants[i].reserved_in.value_or(0);
      if (waits) {
        left.push_back(job);
      } else {
        Start(job);
      }
    }
    waiting_ = std::move(left);
  }

  const std::vector<SimulatedJob>& jobs_;
  const QueuePolicy policy_;
  double now_ = 0;
  std::vector<std::size_t> waiting_;  // in the order of arrival
  std::vector<placement::GangWorker> idle_;
  std::multimap<double, Gang> running_;  // by end
  QueueOutcome outcome_;
};

}  // namespace

std::vector<SimulatedJob> MakeJobs(const QueueLoad& load) {
  // Distributions of the standard library differ from one library to another. These do not.
  std::mt19937_64 random(load.seed);
  const auto uniform = [&] { return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53; };
  const auto log_uniform = [&](double low, double high) {
    return low * std::pow(high / low, uniform());
  };
  std::vector<SimulatedJob> jobs(load.jobs);
  double work = 0;
  for (SimulatedJob& job : jobs) {
    // Rounding gives both ends as much room as other numbers have.
    job.workers = std::clamp(static_cast<int>(std::lround(log_uniform(0.5, load.workers + 0.5))), 1,
                             load.workers);
    job.seconds = log_uniform(load.shortest, load.longest);
    const double normal =
        std::sqrt(-2 * std::log(uniform())) * std::cos(2 * std::acos(-1.0) * uniform());
    job.predicted = job.seconds * std::exp(load.error * normal);
    work += job.workers * job.seconds;
  }
  const double mean_gap = work / load.jobs / (load.workers * load.load);
  double now = 0;
  for (SimulatedJob& job : jobs) {
    now -= mean_gap * std::log(uniform());
    job.arrival = now;
  }
  return jobs;
}

QueueOutcome SimulateQueue(const std::vector<SimulatedJob>& jobs, int workers, QueuePolicy policy) {
  return Simulation(jobs, workers, policy).Run();
}

}  // namespace takt::bench
