// SPDX-License-Identifier: Apache-2.0
// `takt complete` prints the names that the scripts of completion_script.h offer.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/app.h"
#include "cli/client/connect.h"
#include "cli/commands.h"
#include "common/base/status.h"
#include "common/checkpoint/directory.h"

namespace takt::cli {
namespace {

// Says how long the user's shell waits for the coordinator, at most twice.
constexpr absl::Duration kDeadline = absl::Milliseconds(500);

struct CompleteOptions {
  std::string kind;
  std::vector<std::string> words;
};

using Names = absl::StatusOr<std::vector<std::string>>;

absl::StatusOr<std::unique_ptr<Client>> ConnectSoon(const Context& context) {
  ASSIGN_OR_RETURN(ClientOptions options, ClientOptionsOf(context));
  options.connect_timeout = options.call_timeout = kDeadline;
  return Client::Connect(std::move(options));
}

Names JobNames(const Context& context) {
  ASSIGN_OR_RETURN(const auto client, ConnectSoon(context));
  ASSIGN_OR_RETURN(const std::vector<v1::Job> jobs, client->ListJobs());
  ASSIGN_OR_RETURN(const std::vector<v1::HeldJob> held, client->ListHeldJobs());
  std::vector<std::string> names;
  for (const v1::Job& job : jobs) names.push_back(job.name());
  for (const v1::HeldJob& job : held) names.push_back(job.name());
  return names;
}

Names WorkerNames(const Context& context) {
  ASSIGN_OR_RETURN(const auto client, ConnectSoon(context));
  ASSIGN_OR_RETURN(const std::vector<v1::Worker> workers, client->ListWorkers());
  std::vector<std::string> names;
  for (const v1::Worker& worker : workers) names.push_back(worker.name());
  return names;
}

// Returns the steps in every word that is a directory of checkpoints.
Names StepNames(const std::vector<std::string>& words) {
  std::vector<std::string> names;
  for (const std::string& word : words) {
    const auto steps = checkpoint::ListSteps(word);
    if (!steps.ok()) continue;
    for (const checkpoint::ListedStep& step : *steps) {
      if (step.state == checkpoint::StepState::kComplete)
        names.push_back(absl::StrCat(step.step.value()));
    }
  }
  return names;
}

Names NamesOf(const std::string& kind, const Context& context,
              const std::vector<std::string>& words) {
  if (kind == "jobs") return JobNames(context);
  if (kind == "workers") return WorkerNames(context);
  return StepNames(words);
}

// Returns `context` with the global options of a line that is not finished. It leaves them out if
// they do not parse.
Context ContextOfLine(const Context& context, const std::vector<std::string>& words) {
  Context of_line = context;
  CLI::App globals;
  globals.allow_extras();
  AddGlobalOptions(globals, of_line);
  try {
    globals.parse(std::vector<std::string>(words.rbegin(), words.rend()));
  } catch (const CLI::ParseError&) {
    return context;
  }
  return of_line;
}

// Prints nothing on an error: the message would stand in the middle of the user's line.
absl::StatusOr<ExitCode> Complete(const Context& context, const CompleteOptions& options) {
  const Names names = NamesOf(options.kind, ContextOfLine(context, options.words), options.words);
  if (!names.ok()) return ExitCode::kDone;
  for (const std::string& name : *names) context.terminal.out << name << "\n";
  context.terminal.out << std::flush;
  return ExitCode::kDone;
}

}  // namespace

void AddComplete(CLI::App& app, Context& context) {
  CLI::App* command = AddCommand<CompleteOptions>(
      app, context, "complete", "Print the names that a shell may offer, one a line",
      [](CLI::App& app, CompleteOptions& options) {
        app.add_option("KIND", options.kind, "Of what")
            ->type_name("")
            ->required()
            ->check(CLI::IsMember({"jobs", "workers", "steps"}));
        app.add_option("WORDS", options.words, "After --: the words of the line so far")
            ->type_name("");
      },
      Complete);
  command->group("");  // for the scripts of takt completion: not in the help
  command->footer(
      "The coordinator has half a second to answer. On an error this prints nothing.\n\n"
      "Example:\n  takt complete steps -- checkpoint verify checkpoints");
}

}  // namespace takt::cli
