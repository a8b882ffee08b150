// SPDX-License-Identifier: Apache-2.0
// A cluster on this machine that lasts as long as a function runs.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "cli/base/context.h"
#include "cli/client/client.h"

namespace takt::cli {

// Starts a coordinator and workers in a temporary directory, as `local run` would, calls `use` when
// all are attached, stops them and removes the directory. Returns what `use` returns. Errors:
// kFailedPrecondition (more workers than this machine can start at once), kNotFound (takt-worker is
// not installed), kInternal (see LocalCluster).
absl::Status WithLocalWorkers(const Context& context, int num_workers,
                              const std::function<absl::Status(Client&)>& use);

}  // namespace takt::cli
