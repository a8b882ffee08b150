// SPDX-License-Identifier: Apache-2.0
// Runs one simulated cluster from its start until all jobs have ended. README.md says what it
// models.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/simulation/config.h"
#include "tests/simulation/oracle.h"

namespace takt::simulation {

struct Outcome {
  std::optional<Violation> violation;
  std::uint64_t trace_hash = 0;
  std::vector<std::string> last_events;
  double virtual_seconds = 0;
  // So many events, committed steps, generations that resumed from copies in memory, that had fewer
  // or more ranks than the one before, boundaries of the coordinator and calls to the disk.
  std::int64_t events = 0, steps = 0, from_memory = 0, shrunk = 0, grown = 0, boundaries = 0,
               disk_calls = 0;
};

// print: is given each line of the trace; may be empty. The same configuration has the same outcome
// each time.
Outcome Simulate(const Config& config, std::function<void(const std::string&)> print = nullptr);

}  // namespace takt::simulation
