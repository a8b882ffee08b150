// SPDX-License-Identifier: Apache-2.0
// Commands on jobs. Each function adds one command, which has a file of its own name, to the tree
// of `app`.
#pragma once

#include "cli/base/context.h"

namespace takt::cli {

void AddSubmit(CLI::App& app, Context& context);
void AddPlan(CLI::App& app, Context& context);
void AddJobs(CLI::App& app, Context& context);
void AddJob(CLI::App& app, Context& context);
void AddWatch(CLI::App& app, Context& context);
void AddWait(CLI::App& app, Context& context);
void AddCancel(CLI::App& app, Context& context);
void AddPause(CLI::App& app, Context& context);  // pause, resume
void AddDelete(CLI::App& app, Context& context);
void AddLogs(CLI::App& app, Context& context);
void AddTrace(CLI::App& app, Context& context);
void AddExplain(CLI::App& app, Context& context);

}  // namespace takt::cli
