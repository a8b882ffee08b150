// SPDX-License-Identifier: Apache-2.0
// Commands for people who write job files, each in the file of its name.
#pragma once

#include "cli/base/context.h"

namespace takt::cli {

void AddInit(CLI::App& app, Context& context);
void AddSchema(CLI::App& app, Context& context);

}  // namespace takt::cli
