// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/base/context.h"

namespace takt::cli {

void AddUi(CLI::App& app, Context& context);

}  // namespace takt::cli
