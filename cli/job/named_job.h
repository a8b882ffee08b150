// SPDX-License-Identifier: Apache-2.0
// Adds commands that take nothing but the name of a job.
#pragma once

#include <functional>
#include <string>

#include "cli/base/context.h"
#include "cli/client/client.h"

namespace takt::cli {

using RunOnJob =
    std::function<absl::StatusOr<ExitCode>(const Context&, Client&, const std::string& job)>;

// Connects to the coordinator and calls `run` with the job of this name.
absl::StatusOr<ExitCode> RunOnNamedJob(const Context& context, const std::string& job,
                                       const RunOnJob& run);

// Adds a command that connects to the coordinator and calls `run` with the job that the user names.
CLI::App* AddOnJob(CLI::App& app, Context& context, const std::string& name,
                   const std::string& summary, RunOnJob run);

// Returns a function that makes this call and prints the job that it returns.
RunOnJob PrintResultOf(absl::StatusOr<v1::Job> (Client::*call)(const std::string& job));

}  // namespace takt::cli
