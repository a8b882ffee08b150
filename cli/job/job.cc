// SPDX-License-Identifier: Apache-2.0
// Declares the group `job`. `takt job NAME` is the short form of `takt job show NAME`.
#include <memory>
#include <string>
#include <vector>

#include "cli/job/commands.h"
#include "cli/job/named_job.h"

namespace takt::cli {
namespace {

// Adds the commands that are called the same in the group and without their noun.
void AddCommandsOfBoth(CLI::App& parent, Context& context) {
  AddSubmit(parent, context);
  AddWatch(parent, context);
  AddWait(parent, context);
  AddCancel(parent, context);
  AddPause(parent, context);
  AddAdopt(parent, context);
  AddAbandon(parent, context);
  AddDelete(parent, context);
  AddLogs(parent, context);
  AddTrace(parent, context);
  AddExplain(parent, context);
}

}  // namespace

void AddJob(CLI::App& app, Context& context) {
  CLI::App* group = app.add_subcommand("job", "Submit, list, show and control jobs");
  group->footer("Examples:\n  takt job list\n  takt job show kjv-gpt");
  auto name = std::make_shared<std::string>();
  group->add_option("JOB", *name, "Show this job, as takt job show does")->type_name("");
  group->callback([&context, group, name] {
    if (name->empty()) return;
    // CLI11 gives the group each word that its command does not take.
    if (!group->get_subcommands().empty()) throw CLI::ExtrasError(std::vector<std::string>{*name});
    context.action = [&context, name] {
      return RunOnNamedJob(context, *name, PrintResultOf(&Client::GetJob));
    };
  });
  AddJobs(*group, context, "list");
  AddOnJob(*group, context, "show", "Show one job", PrintResultOf(&Client::GetJob))
      ->footer("Example:\n  takt job show kjv-gpt");
  AddCommandsOfBoth(*group, context);
}

void AddJobShortForms(CLI::App& app, Context& context) {
  AddJobs(app, context, "jobs");
  AddCommandsOfBoth(app, context);
}

}  // namespace takt::cli
