// SPDX-License-Identifier: Apache-2.0
#include "cli/commands.h"
#include "cli/completion_script.h"

namespace takt::cli {
namespace {

struct CompletionOptions {
  std::string shell;
};

}  // namespace

void AddCompletion(CLI::App& app, Context& context) {
  CLI::App* command = AddCommand<CompletionOptions>(
      app, context, "completion", "Print a script that completes takt's commands and options",
      [](CLI::App& app, CompletionOptions& options) {
        app.add_option("SHELL", options.shell, "For this shell")
            ->required()
            ->check(CLI::IsMember({"bash", "zsh", "fish"}));
      },
      [&app](const Context& context, const CompletionOptions& options) -> absl::StatusOr<ExitCode> {
        context.terminal.out << CompletionScript(app, options.shell) << std::flush;
        return ExitCode::kDone;
      });
  command->footer(
      "Examples:\n"
      "  source <(takt completion bash)\n"
      "  takt completion zsh > \"${fpath[1]}/_takt\"\n"
      "  takt completion fish > ~/.config/fish/completions/takt.fish");
}

}  // namespace takt::cli
