// SPDX-License-Identifier: Apache-2.0
// What all processes of a simulation share.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "coordinator/store/memory_store.h"
#include "coordinator/store/store.h"
#include "tests/simulation/answer_checker.h"
#include "tests/simulation/config.h"
#include "tests/simulation/event_loop.h"
#include "tests/simulation/model_disk.h"
#include "tests/simulation/oracle.h"
#include "tests/simulation/random.h"
#include "tests/simulation/trace.h"

namespace takt::simulation {

// What happens to the process that makes one of the next calls to the disk.
struct CallFault {
  bool kills = false;  // otherwise it is paused
  int calls = 1;       // the call that is hit, counted from the next one
};

// One thread. It outlives all processes.
struct World {
  // print: see Trace.
  World(Config drawn, std::function<void(const std::string&)> print)
      : config(std::move(drawn)), trace(&loop, std::move(print)) {
    oracle.set_disk(disk.root());
    trace.set_disk(disk.root());
    disk.set_on_step([this](const std::string& directory) { oracle.CheckDirectory(directory); });
    disk.mood() = {.exchanges = config.exchanges,
                   .late_error_chance = config.late_renames,
                   .forgets_syncs = config.mutation == Mutation::kForgottenSyncs};
    if (config.kill_worker_at_call > 0)
      call_fault = {.kills = true, .calls = static_cast<int>(config.kill_worker_at_call)};
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // The state directory is lost. The coordinator must be dead.
  void LoseState() {
    trace.Add("fault", "the state is lost");
    durable = store::NewMemoryStore();
    cluster_id = std::string(32, '1');
    oracle.LosesState();
  }

  Moment Now() const {
    return {absl::FromUnixSeconds(1'700'000'000) + loop.now() + wall_offset, loop.now()};
  }

  const Config config;
  EventLoop loop;
  Random random{Mix(config.seed, 2)};
  Trace trace;
  Oracle oracle{&config, &loop, &trace};
  AnswerChecker answers{&oracle};
  ModelDisk disk{&random};
  // They survive the coordinator, as its file would. The id is in place of the store's own, which
  // is always the same.
  std::unique_ptr<store::Store> durable = store::NewMemoryStore();
  std::string cluster_id = std::string(32, '0');
  absl::Duration wall_offset = absl::ZeroDuration();
  bool store_full = false;  // the coordinator's disk has no room
  std::optional<CallFault> call_fault;
};

}  // namespace takt::simulation
