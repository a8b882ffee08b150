// SPDX-License-Identifier: Apache-2.0
// A gang is all the workers that one job needs at once. The queue says which waiting jobs get their
// gang now, and what the others wait for. Among the jobs that fit, the one that came first is
// served first. A gang is given whole or not at all.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/config/job_spec.h"

namespace takt::placement {

// A job needs exactly `workers` workers, or with `up_to_all` at least that many and as many as are
// idle.
struct Need {
  int workers = 1;
  bool up_to_all = false;
  // All of them compute on this kind: kCpu or kCuda. Every worker has cores. For kCpu, workers
  // without a GPU are taken first.
  config::DeviceKind device = config::DeviceKind::kCpu;
  // Each worker must have NCCL and a GPU that no other worker of the gang uses.
  bool nccl = false;
};

struct IdleWorker {
  std::string name;
  bool has_gpu = false, has_nccl = false;
  std::string gpu;  // its uuid
};

struct Capacity {
  // These are attached, not held and not drained. They are in the order in which ranks are given
  // out.
  std::vector<IdleWorker> idle;
  std::map<std::string, int> held;  // by job
  int drained = 0, leaving = 0;     // attached, not held
};

struct Grant {
  std::vector<std::string> workers;  // by rank; empty: none
  std::string reason;                // e.g. "needs 4 workers, 2 idle: 2 held by job x, 1 drained"
};

// Returns one grant for each need, in the same order.
std::vector<Grant> GrantGangs(const std::vector<std::pair<std::string, Need>>& waiting,
                              Capacity capacity);

}  // namespace takt::placement
