// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/simulation.h"

#include <algorithm>
#include <deque>
#include <filesystem>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/store/record.h"
#include "tests/simulation/clients.h"
#include "tests/simulation/coordinator_process.h"
#include "tests/simulation/data_plane.h"
#include "tests/simulation/faults.h"
#include "tests/simulation/worker_process.h"
#include "tests/simulation/world.h"

namespace takt::simulation {
namespace {

// Once nothing fails any more, each job does a step or ends within this time. It is more than the
// longest wait of a job after faults, and than all other jobs need.
constexpr absl::Duration kPatience = absl::Minutes(15);
constexpr absl::Duration kLook = absl::Seconds(5);

class Simulation final {
 public:
  Simulation(const Config& config, std::function<void(const std::string&)> print);
  // What waits in the coordinator refers to the workers.
  ~Simulation() { coordinator_.Kill(); }

  Outcome Run();

 private:
  void RestartLater(const std::function<void()>& start);
  void LoseState();
  void Heal();
  void AwaitEnd();
  // Returns the job that did nothing for too long, null if there is none.
  const DurableJob* FindStuck(absl::Duration healed) const;
  bool IsOver() const;

  World world_;
  DataPlane plane_{&world_};
  CoordinatorProcess coordinator_;
  std::vector<std::unique_ptr<WorkerProcess>> workers_;
  Clients clients_;
  Faults faults_;
};

Simulation::Simulation(const Config& config, std::function<void(const std::string&)> print)
    : world_(config, std::move(print)),
      coordinator_(&world_, [this] { RestartLater([this] { coordinator_.Start(); }); }),
      clients_(&world_, &coordinator_),
      faults_({.world = &world_,
               .coordinator = &coordinator_,
               .plane = &plane_,
               .workers = &workers_,
               .clients = &clients_}) {
  for (int number = 0; number < config.num_workers; ++number) {
    workers_.push_back(std::make_unique<WorkerProcess>(
        &world_, &coordinator_, &plane_, absl::StrCat("w", number),
        [this, number] { RestartLater([this, number] { workers_[number]->Start(); }); }));
  }
  for (const JobShape& job : config.jobs) {
    if (job.saves) std::filesystem::create_directory(world_.disk.root() + "/" + job.name);
  }
}

// As systemd does.
void Simulation::RestartLater(const std::function<void()>& start) {
  world_.loop.After(world_.random.Between(absl::Milliseconds(100), absl::Seconds(8)), start);
}

void Simulation::LoseState() {
  coordinator_.Kill();
  world_.LoseState();
  clients_.AdoptJobs();
  RestartLater([this] { coordinator_.Start(); });
}

Outcome Simulation::Run() {
  world_.trace.Add("seed", world_.config.seed, ": ", ToString(world_.config));
  coordinator_.Start();
  for (const auto& worker : workers_) {
    world_.loop.At(world_.random.Between(absl::ZeroDuration(), absl::Seconds(2)),
                   [&worker] { worker->Start(); });
  }
  if (world_.config.lose_state_at < absl::InfiniteDuration())
    world_.loop.At(world_.config.lose_state_at, [this] { LoseState(); });
  faults_.Begin();
  world_.loop.RunUntil(world_.config.fault_phase);
  Heal();
  AwaitEnd();
  if (!world_.loop.stopped()) {
    world_.oracle.Starts(world_.durable->Load().value());
    world_.oracle.CheckAllDirectories();
  }
  const std::deque<std::string>& lines = world_.trace.lines();
  return {.violation = world_.oracle.violation(),
          .trace_hash = world_.trace.hash(),
          .last_events = {lines.begin(), lines.end()},
          .virtual_seconds = absl::ToDoubleSeconds(world_.loop.now()),
          .events = world_.loop.num_events(),
          .steps = world_.oracle.committed_steps(),
          .from_memory = world_.oracle.from_memory(),
          .shrunk = world_.oracle.shrunk(),
          .grown = world_.oracle.grown(),
          .boundaries = coordinator_.boundaries(),
          .disk_calls = world_.disk.calls()};
}

void Simulation::Heal() {
  world_.trace.Add("fault", "no more faults");
  faults_.Heal();
  clients_.Heal();
}

bool Simulation::IsOver() const {
  if (!clients_.idle()) return false;
  for (const auto& [id, job] : world_.oracle.jobs()) {
    if (!store::HasEnded(job.state)) return false;
  }
  return true;
}

const DurableJob* Simulation::FindStuck(absl::Duration healed) const {
  for (const auto& [id, job] : world_.oracle.jobs()) {
    const absl::Duration since = std::max(job.progress, healed);
    if (!store::HasEnded(job.state) && world_.loop.now() - since > kPatience) return &job;
  }
  return nullptr;
}

void Simulation::AwaitEnd() {
  const absl::Duration healed = world_.loop.now();
  while (!world_.loop.stopped() && !IsOver()) {
    world_.loop.RunUntil(world_.loop.now() + kLook);
    if (const DurableJob* const job = FindStuck(healed)) {
      world_.oracle.Violate(
          "every job makes progress",
          absl::StrCat("job ", job->name, " is ", store::Name(job->state), " at step ",
                       job->done().value(), " of ", job->steps, ": ", job->reason));
    } else if (world_.loop.now() - healed > 4 * kPatience) {
      world_.oracle.Violate("every job makes progress", "the simulation does not end");
    }
  }
}

}  // namespace

Outcome Simulate(const Config& config, std::function<void(const std::string&)> print) {
  return Simulation(config, std::move(print)).Run();
}

}  // namespace takt::simulation
