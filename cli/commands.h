// SPDX-License-Identifier: Apache-2.0
// Commands about `takt` itself, each in the file of its name. Other commands are in the rooms.
#pragma once

#include "cli/base/context.h"
#include "cli/base/message_json.h"

namespace takt::cli {

void AddCompletion(CLI::App& app, Context& context);
void AddComplete(CLI::App& app, Context& context);
void AddVersion(CLI::App& app, Context& context);

// Returns the version of takt, as `takt version -o json` prints it without a coordinator.
Json VersionJson();

}  // namespace takt::cli
