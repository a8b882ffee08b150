// SPDX-License-Identifier: Apache-2.0
// Commands that use a trained model: `takt generate` and `takt eval`, each in a file of its name.
#pragma once

#include "cli/base/context.h"

namespace takt::cli {

void AddGenerate(CLI::App& app, Context& context);
void AddEval(CLI::App& app, Context& context);

}  // namespace takt::cli
