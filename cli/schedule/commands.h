// SPDX-License-Identifier: Apache-2.0
// `takt schedule`: the command and its subcommands, each in a file of its name.
#pragma once

#include "cli/base/context.h"

namespace takt::cli {

void AddSchedule(CLI::App& app, Context& context);

// Used by the above.
void AddScheduleList(CLI::App& schedule, Context& context);
void AddScheduleShow(CLI::App& schedule, Context& context);
void AddScheduleSimulate(CLI::App& schedule, Context& context);
void AddScheduleCompare(CLI::App& schedule, Context& context);
void AddScheduleVerify(CLI::App& schedule, Context& context);

}  // namespace takt::cli
