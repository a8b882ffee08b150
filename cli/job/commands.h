// SPDX-License-Identifier: Apache-2.0
// Declares the commands on jobs. Each function adds some to the tree of `app`.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "cli/base/context.h"
#include "cli/client/client.h"

namespace takt::cli {

// Calls `use` with the coordinator of a cluster that lasts as long as the call (cli/local).
using WithWorkers = std::function<absl::Status(const Context& context, int num_workers,
                                               const std::function<absl::Status(Client&)>& use)>;

void AddPlan(CLI::App& app, Context& context, WithWorkers with_local_workers);
void AddProfile(CLI::App& app, Context& context);
// Adds the group `job` with all commands on jobs.
void AddJob(CLI::App& app, Context& context);
// Adds what these commands are called without their noun (docs/commands.md).
void AddJobShortForms(CLI::App& app, Context& context);

// Used by the above. Each adds one command, which has a file of its own name.
void AddJobs(CLI::App& parent, Context& context, const std::string& name);
void AddSubmit(CLI::App& app, Context& context);
void AddWatch(CLI::App& app, Context& context);
void AddWait(CLI::App& app, Context& context);
void AddCancel(CLI::App& app, Context& context);
void AddPause(CLI::App& app, Context& context);  // pause, resume
void AddAdopt(CLI::App& app, Context& context);
void AddAbandon(CLI::App& app, Context& context);
void AddDelete(CLI::App& app, Context& context);
void AddLogs(CLI::App& app, Context& context);
void AddTrace(CLI::App& app, Context& context);
void AddExplain(CLI::App& app, Context& context);

}  // namespace takt::cli
