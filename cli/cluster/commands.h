// SPDX-License-Identifier: Apache-2.0
// Commands on the cluster: its workers, its description and its certificates. Each function adds
// commands to the tree of `app`.
#pragma once

#include "cli/base/context.h"

namespace takt::cli {

void AddWorker(CLI::App& app, Context& context);  // worker list, worker drain, worker undrain
// Adds what these commands are called without their noun (docs/commands.md).
void AddWorkerShortForms(CLI::App& app, Context& context);
void AddCluster(CLI::App& app, Context& context);  // cluster describe, in describe.cc
void AddCerts(CLI::App& app, Context& context);    // certs init, certs issue

// Used by the above.
void AddDrain(CLI::App& app, Context& context);  // drain, undrain
void AddCertsCluster(CLI::App& certs, Context& context);
void AddCertsJoin(CLI::App& certs, Context& context);  // certs token, certs join

}  // namespace takt::cli
