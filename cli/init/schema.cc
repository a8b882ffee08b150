// SPDX-License-Identifier: Apache-2.0
#include "cli/init/commands.h"
#include "common/config/job_schema.h"

namespace takt::cli {

void AddSchema(CLI::App& app, Context& context) {
  AddAction(app, context, "schema", "Print the JSON schema of job files, for editors",
            [&context]() -> absl::StatusOr<ExitCode> {
              context.terminal.out << config::JobSchema(context.json() ? -1 : 2) << std::endl;
              return ExitCode::kDone;
            })
      ->footer(
          "The packages install it as /usr/share/takt/job.schema.json. An editor with the YAML "
          "language server completes\nand checks a job file whose first line is\n"
          "  # yaml-language-server: $schema=/usr/share/takt/job.schema.json\n\n"
          "Example:\n  takt schema > job.schema.json");
}

}  // namespace takt::cli
