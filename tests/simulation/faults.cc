// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/faults.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>

namespace takt::simulation {
namespace {

// Keepalive ends a connection over which nothing came for so long.
constexpr absl::Duration kKeepalive = absl::Seconds(15);

// True if a rank may be lost by it. A job without checkpoints may fail then.
bool HurtsRanks(Fault fault) {
  switch (fault) {
    case Fault::kStopCoordinator:
    case Fault::kKillCoordinator:
    case Fault::kFailedCommit:
    case Fault::kStoreFull:
    case Fault::kSlowWorker:
    case Fault::kClockStep:
    case Fault::kRequests:
    case Fault::kDrain:
      return false;
    default:
      return true;
  }
}

}  // namespace

void Faults::Begin() {
  for (int fault = 0; fault < kNumFaults; ++fault) Schedule(static_cast<Fault>(fault));
}

void Faults::Schedule(Fault fault) {
  const World& world = *it_.world;
  if (!world.config.Has(fault)) return;
  const absl::Duration mean = world.config.mean_time[static_cast<int>(fault)];
  it_.world->loop.After(it_.world->random.Between(absl::Milliseconds(1), 2 * mean), [this, fault] {
    if (healed_) return;
    if (HurtsRanks(fault)) it_.world->oracle.HarmsRanks();
    it_.world->trace.Add("fault", std::string(Name(fault)));
    Happen(fault);
    Schedule(fault);
  });
}

WorkerProcess& Faults::AnyWorker() {
  return *(*it_.workers)[it_.world->random.Between(0, std::ssize(*it_.workers) - 1)];
}

absl::Duration Faults::Soon() {
  Random& random = it_.world->random;
  const absl::Duration most = random.Chance(0.7) ? absl::Seconds(4) : absl::Seconds(25);
  return it_.world->loop.now() + random.Between(absl::Milliseconds(100), most);
}

void Faults::Happen(Fault fault) {
  World& world = *it_.world;
  switch (fault) {
    case Fault::kPartition:
    case Fault::kCutOff:
      return Partition(fault == Fault::kCutOff);
    case Fault::kKillCoordinator:
      // At once, or at one of the next boundaries.
      if (world.random.Chance(0.3)) {
        it_.coordinator->KillAtBoundary(1);
      } else {
        it_.coordinator->KillAtBoundary(world.random.Between(2, 60));
      }
      return;
    case Fault::kStopCoordinator:
      return it_.coordinator->StopUntil(Soon());
    case Fault::kFailedCommit:
      return it_.coordinator->FailNextCommit();
    case Fault::kStoreFull:
      world.store_full = true;
      return world.loop.At(Soon(), [&world] { world.store_full = false; });
    case Fault::kLostLink:
      return it_.plane->BreakLink();
    case Fault::kClockStep:
      world.wall_offset += world.random.Between(-absl::Hours(3), absl::Hours(3));
      return;
    case Fault::kDiskFull:
    case Fault::kDiskErrors:
    case Fault::kPausedCall:
    case Fault::kKilledCall:
      return HurtDisk(fault);
    case Fault::kPowerCut:
      return PowerCut();
    case Fault::kRequests:
      return it_.clients->AskForSomething();
    case Fault::kDrain:
      return it_.clients->Drain(AnyWorker().name());
    case Fault::kBreak:
    case Fault::kKillWorker:
    case Fault::kVanish:
    case Fault::kStopWorker:
    case Fault::kSlowWorker:
    case Fault::kLeave:
      return HurtWorker(fault);
  }
}

void Faults::HurtWorker(Fault fault) {
  WorkerProcess& worker = AnyWorker();
  switch (fault) {
    case Fault::kBreak:
      return worker.BreakStreams();
    case Fault::kStopWorker:
      return worker.StopUntil(Soon());
    case Fault::kSlowWorker:
      return worker.SlowUntil(Soon(), 8);
    case Fault::kLeave:
      return worker.Leave();
    default: {
      if (!worker.alive()) return;
      worker.Kill(/*told=*/fault == Fault::kKillWorker);
      it_.world->loop.At(Soon(), [&worker] { worker.Start(); });
    }
  }
}

void Faults::Partition(bool all) {
  World& world = *it_.world;
  const absl::Duration until = Soon();
  const std::int64_t which = world.random.Between(1, 3);  // the directions that are dead
  WorkerProcess& one = AnyWorker();
  for (const auto& worker : *it_.workers) {
    if (!all && worker.get() != &one) continue;
    for (const End end : {End::kWorker, End::kCoordinator}) {
      if ((which & (1 << static_cast<int>(end))) == 0) continue;
      absl::Duration& blocked = worker->path().blocked_until[static_cast<int>(end)];
      blocked = std::max(blocked, until);
    }
    if (until - world.loop.now() < kKeepalive) continue;
    world.loop.After(kKeepalive, [worker = worker.get()] { worker->BreakStreams(); });
  }
}

void Faults::HurtDisk(Fault fault) {
  World& world = *it_.world;
  DiskMood& mood = world.disk.mood();
  switch (fault) {
    case Fault::kDiskFull:
      mood.full = true;
      return world.loop.At(Soon(), [&mood] { mood.full = false; });
    case Fault::kDiskErrors:
      mood.error_chance = 0.2;
      return world.loop.At(Soon(), [&mood] { mood.error_chance = 0; });
    default:
      world.call_fault = CallFault{.kills = fault == Fault::kKilledCall,
                                   .calls = static_cast<int>(world.random.Between(1, 25))};
  }
}

void Faults::PowerCut() {
  World& world = *it_.world;
  it_.coordinator->Kill();
  for (const auto& worker : *it_.workers) worker->Kill(/*told=*/false);
  world.disk.PowerCut();
  world.oracle.CheckAllDirectories();
  world.loop.At(Soon(), [this] { it_.coordinator->Start(); });
  for (const auto& worker : *it_.workers)
    world.loop.At(Soon(), [worker = worker.get()] { worker->Start(); });
}

void Faults::Heal() {
  healed_ = true;
  World& world = *it_.world;
  world.call_fault.reset();
  world.store_full = false;
  world.disk.mood().full = false;
  world.disk.mood().error_chance = 0;
  for (const auto& worker : *it_.workers) worker->path().blocked_until.fill(absl::ZeroDuration());
}

}  // namespace takt::simulation
