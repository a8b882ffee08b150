// SPDX-License-Identifier: Apache-2.0
// `takt checkpoint`: the command and its subcommands, each in a file of its name.
#pragma once

#include "cli/base/context.h"

namespace takt::cli {

void AddCheckpoint(CLI::App& app, Context& context);

// Used by the above.
void AddCheckpointList(CLI::App& checkpoint, Context& context);
void AddCheckpointVerify(CLI::App& checkpoint, Context& context);
void AddCheckpointExport(CLI::App& checkpoint, Context& context);

}  // namespace takt::cli
