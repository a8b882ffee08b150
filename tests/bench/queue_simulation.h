// SPDX-License-Identifier: Apache-2.0
// Lets random jobs come, wait, run and end on workers that are all alike, in simulated time.
#pragma once

#include <cstdint>
#include <vector>

namespace takt::bench {

struct SimulatedJob {
  double arrival = 0;  // seconds
  int workers = 1;
  double seconds = 0;    // for which it runs
  double predicted = 0;  // seconds, as the queue is told
};

struct QueueLoad {
  int jobs = 10'000, workers = 64;
  double load = 0.9;                          // share of the workers that the jobs would keep busy
  double shortest = 60, longest = 12 * 3600;  // seconds of a job
  // The predicted duration is the real one, times e to a normal variable of this deviation.
  double error = 0.3;
  std::uint64_t seed = 1;
};

// Returns jobs in the order of arrival. Arrivals are a Poisson process. Numbers of workers, from 1
// to all of them, and durations are log-uniform.
std::vector<SimulatedJob> MakeJobs(const QueueLoad& load);

enum class QueuePolicy : std::uint8_t {
  kFirstComeFirstServed,  // nobody overtakes
  kBackfill,              // whoever fits starts
  kReserve,               // placement::GrantGangs
};

struct QueueOutcome {
  std::vector<double> starts;  // by job
  // When the job was to start by its first reservation, or by its first grant; only of kReserve.
  std::vector<double> promises;
  double serve_seconds = 0;  // real time of all decisions
  int most_waiting = 0;
};

QueueOutcome SimulateQueue(const std::vector<SimulatedJob>& jobs, int workers, QueuePolicy policy);

}  // namespace takt::bench
