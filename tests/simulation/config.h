// SPDX-License-Identifier: Apache-2.0
// The configuration of one simulation. All of it follows from the seed. Each kind of fault is on or
// off by a coin before its rate is drawn (swarm testing: Groce et al., ISSTA 2012), because a fault
// that is always on hides what others would show.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"

namespace takt::simulation {

enum class Fault : std::uint8_t {
  kBreak,            // a worker's connections break
  kPartition,        // one direction between a worker and the coordinator is dead for a while
  kCutOff,           // the same for all workers at once
  kKillWorker,       // its host tells its peers, as after kill -9
  kVanish,           // nobody is told, as after the loss of a host
  kStopWorker,       // a worker does nothing for a while (SIGSTOP)
  kSlowWorker,       // its steps take several times as long
  kLeave,            // a worker is asked to leave (SIGTERM), and comes back
  kKillCoordinator,  // at the next boundary of a commit or an effect
  kStopCoordinator,  // it does nothing for a while
  kFailedCommit,     // the store keeps nothing, and the coordinator ends
  kStoreFull,        // for a while: the coordinator is read-only
  kLostLink,         // the data connection of two ranks breaks
  kClockStep,        // the coordinator's wall clock is set
  kDiskFull,         // for a while
  kDiskErrors,       // for a while
  kPausedCall,       // a process is paused in the middle of a commit to the disk
  kKilledCall,       // a worker is killed there
  kPowerCut,         // all processes die, and what was not synced is lost
  kRequests,         // clients pause, resume, cancel, delete and submit again
  kDrain,            // operators drain workers and take it back
};
inline constexpr int kNumFaults = static_cast<int>(Fault::kDrain) + 1;
std::string_view Name(Fault fault);

// Rules that can be broken on purpose, to see that the simulation notices.
enum class Mutation : std::uint8_t {
  kNone,
  kEffectsBeforeCommit,   // the coordinator acts before it stores
  kStaleReports,          // it takes reports of an older generation for the present one's
  kForgottenReports,      // a worker does not send again what was not acknowledged
  kForgottenSyncs,        // the disk loses what was synced
  kForgottenCoordinator,  // a worker never connects again
};
std::string_view Name(Mutation mutation);
// Returns nullopt if there is none of that name.
std::optional<Mutation> FindMutation(std::string_view name);

inline constexpr int kLayers = 8;  // of each job's model

struct JobShape {
  std::string name;
  int pipeline = 1, data = 1;
  // An elastic job continues with fewer ranks of an axis if it must, down to these. 0: it keeps its
  // size.
  int least_pipeline = 0, least_data = 0;
  std::int64_t steps = 10;
  absl::Duration step_time = absl::Milliseconds(200);
  bool saves = true;
  std::int64_t every_steps = 0;  // of checkpoints; 0: only at the end
  int keep = 1;
  std::int64_t copy_every_steps = 0;  // of copies in memory; 0: none
  int priority = 50;
  absl::Duration submit_at = absl::ZeroDuration();

  int num_ranks() const { return pipeline * data; }
};

struct Config {
  std::uint64_t seed = 1;
  int num_workers = 2;
  std::vector<JobShape> jobs;
  // The mean time from one fault of a kind to the next. Infinite: it is off.
  std::array<absl::Duration, kNumFaults> mean_time;
  absl::Duration fault_phase = absl::Seconds(40);
  absl::Duration most_delay = absl::Milliseconds(5);  // of messages
  absl::Duration tick = absl::Milliseconds(200);      // of the coordinator
  absl::Duration first_backoff = absl::Seconds(10);   // of jobs, after faults
  absl::Duration grow_after = absl::Seconds(60);      // of elastic jobs beside idle workers
  bool exchanges = true;                              // the disk can exchange names
  double late_renames = 0;                            // share of renames that are done but fail
  Mutation mutation = Mutation::kNone;
  // The coordinator is killed at this boundary, counted from 1. 0: only by its faults.
  std::int64_t kill_coordinator_at = 0;
  // The worker that makes this call to the disk is killed before it, likewise.
  std::int64_t kill_worker_at_call = 0;
  // The coordinator is killed then, and begins again without its state. Users adopt their jobs.
  absl::Duration lose_state_at = absl::InfiniteDuration();

  bool Has(Fault fault) const {
    return mean_time[static_cast<int>(fault)] != absl::InfiniteDuration();
  }
};

Config DrawConfig(std::uint64_t seed);
// Returns a small configuration in which nothing fails: one job of two ranks that saves.
Config QuietConfig(std::uint64_t seed);

// Describes it for people, in one line.
std::string ToString(const Config& config);

}  // namespace takt::simulation
