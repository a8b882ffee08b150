// SPDX-License-Identifier: Apache-2.0
// Does to a simulated cluster what machines, networks and people do to a real one.
#pragma once

#include <memory>
#include <vector>

#include "tests/simulation/clients.h"
#include "tests/simulation/coordinator_process.h"
#include "tests/simulation/data_plane.h"
#include "tests/simulation/worker_process.h"
#include "tests/simulation/world.h"

namespace takt::simulation {

struct Processes {
  World* world = nullptr;
  CoordinatorProcess* coordinator = nullptr;
  DataPlane* plane = nullptr;
  std::vector<std::unique_ptr<WorkerProcess>>* workers = nullptr;
  Clients* clients = nullptr;
};

// One thread.
class Faults final {
 public:
  // processes: borrowed.
  explicit Faults(const Processes& processes) : it_(processes) {}

  // Faults happen from now on, each kind by its rate.
  void Begin();
  // No more faults happen, and the lasting ones end: paths are free, and processes continue.
  void Heal();

 private:
  void Schedule(Fault fault);
  void Happen(Fault fault);
  void Partition(bool all);
  void HurtDisk(Fault fault);
  void HurtWorker(Fault fault);
  void PowerCut();
  WorkerProcess& AnyWorker();
  absl::Duration Soon();  // when something that lasts is over

  const Processes it_;
  bool healed_ = false;
};

}  // namespace takt::simulation
