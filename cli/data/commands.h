// SPDX-License-Identifier: Apache-2.0
// `takt data`: the command and its subcommands, each in a file of its name.
#pragma once

#include "cli/base/context.h"

namespace takt::cli {

void AddData(CLI::App& app, Context& context);  // data info, pack, tokenize

// Used by the above.
void AddDataInfo(CLI::App& data, Context& context);
void AddDataPack(CLI::App& data, Context& context);
void AddDataTokenize(CLI::App& data, Context& context);

}  // namespace takt::cli
