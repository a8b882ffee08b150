// SPDX-License-Identifier: Apache-2.0
// Adds `takt admin`, the commands on the coordinator's state.
#pragma once

#include "cli/base/context.h"

namespace takt::cli {

void AddAdmin(CLI::App& app, Context& context);  // admin backup, restore, fsck, forget-profile

}  // namespace takt::cli
