// SPDX-License-Identifier: Apache-2.0
#include "cli/app.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <utility>

#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"
#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "cli/admin/commands.h"
#include "cli/base/one_of.h"
#include "cli/base/report.h"
#include "cli/checkpoint/commands.h"
#include "cli/cluster/commands.h"
#include "cli/commands.h"
#include "cli/data/commands.h"
#include "cli/init/commands.h"
#include "cli/job/commands.h"
#include "cli/local/commands.h"
#include "cli/local/local_workers.h"
#include "cli/model/commands.h"
#include "cli/schedule/commands.h"
#include "cli/ui/commands.h"
#include "common/base/status.h"
#include "common/base/version.h"

namespace takt::cli {
namespace {

constexpr char kMustBeAtMost[] = " must be at most ";

constexpr char kFooter[] =
    "stdout carries only the payload; everything else goes to stderr. With -o json stdout is one\n"
    "JSON object (for streams one a line); a number that is not finite is null; an error is one\n"
    "object on stderr.\n\n"
    "Exit status: 0 done, 1 the job or check failed, 2 wrong usage or invalid input,\n"
    "3 coordinator unreachable, 4 not found, 5 refused (permission), 6 outcome unknown.\n\n"
    "Environment: TAKT_COORDINATOR (address when --coordinator is not given; else the cluster of\n"
    "`takt local up`), TAKT_TLS_CERTIFICATE, TAKT_TLS_KEY, TAKT_TLS_AUTHORITY, TAKT_INSECURE=1\n"
    "(like the options of these names), NO_COLOR, XDG_STATE_HOME.\n\n"
    "Short forms do what the command of the same name does under `job` or `worker`: `takt jobs` "
    "is\n"
    "`takt job list`, `takt job NAME` is `takt job show NAME`, `takt workers` is `takt worker "
    "list`.\n\n"
    "Examples:\n"
    "  takt init tiny && takt local run tiny.yaml       train on this machine\n"
    "  takt submit job.yaml && takt watch my-job        on a cluster\n"
    "  takt schedule show 1f1b --ranks 4 --microbatches 8";

// Returns whether `-o json` is given. If so, even an error of a command line that does not parse is
// JSON.
bool AsksForJson(const std::vector<std::string>& arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "-ojson" || arguments[i] == "--output=json") return true;
    const bool is_output = arguments[i] == "-o" || arguments[i] == "--output";
    if (is_output && i + 1 < arguments.size() && arguments[i + 1] == "json") return true;
  }
  return false;
}

// The innermost command that the user named.
const CLI::App* CommandOf(const CLI::App& app) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  return command;
}

std::string PathOf(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return parent == nullptr ? command.get_name()
                           : absl::StrCat(PathOf(*parent), " ", command.get_name());
}

// For CLI::Option::check: refuses a whole number that the parser would read as the largest one of
// 64 bits.
std::string CheckFits(const std::string& text) {
  char* end = nullptr;
  errno = 0;
  const long long read = std::strtoll(text.c_str(), &end, 0);
  if (errno != ERANGE || *end != '\0' || read < 0) return "";
  return absl::StrCat(text, kMustBeAtMost, std::numeric_limits<std::int64_t>::max());
}

// Bounds the numbers of every option that has no upper bound of its own.
void RefuseTooLargeNumbers(CLI::App& command) {
  for (CLI::Option* option : command.get_options([](CLI::Option*) { return true; })) {
    const std::string type = option->get_type_name();
    if (absl::StrContains(type, "POSITIVE") || absl::StrContains(type, "NONNEGATIVE"))
      option->check(CheckFits);
  }
}

// Ends the help of every command with the same lines, and bounds its numbers.
void FinishCommand(CLI::App& command) {
  command.require_subcommand(0, 1);  // RunApp reports a missing one
  RefuseTooLargeNumbers(command);
  std::string footer = command.get_footer();
  if (command.get_parent() != nullptr) {
    absl::StrAppend(&footer,
                    "\n\nFor every command: --coordinator ADDR, -o text|json, --timeout SECONDS; "
                    "see takt --help");
  }
  command.footer(absl::StrCat(footer, "\n"));
  for (CLI::App* sub : command.get_subcommands([](CLI::App*) { return true; })) FinishCommand(*sub);
}

ExitCode Usage(const CLI::App& app, const Context& context, const absl::Status& status) {
  PrintError(context, status);
  if (!context.json()) Say(context, absl::StrCat("see: ", PathOf(*CommandOf(app)), " --help"));
  return ExitCode::kInvalidInput;
}

// The option or argument of the command that the user named, or of one above it; null: none.
const CLI::Option* FindOption(const CLI::App& app, const std::string& name) {
  const CLI::Option* option = nullptr;
  for (const CLI::App* command = CommandOf(app); command != nullptr && option == nullptr;
       command = command->get_parent())
    option = command->get_option_no_throw(name);
  return option;
}

// The parser prints the ends of a range with six decimals.
absl::string_view WithoutZeros(absl::string_view number) {
  if (!absl::StrContains(number, '.')) return number;
  while (absl::ConsumeSuffix(&number, "0")) {
  }
  absl::ConsumeSuffix(&number, ".");
  return number;
}

// Returns the rule of a range of numbers. One that has no upper end has 309 digits in the parser's
// words, and does not say whether 0 is in it.
std::string RangeRule(absl::string_view low, absl::string_view high, const CLI::Option* option) {
  constexpr std::size_t kLongestNumber = 100;
  if (high.size() <= kLongestNumber)
    return absl::StrCat("must be from ", WithoutZeros(low), " to ", WithoutZeros(high));
  const bool with_zero =
      option != nullptr && absl::StrContains(option->get_type_name(), "NONNEGATIVE");
  return with_zero ? "must be 0 or more" : "must be above 0";
}

// Returns the parts of `text` before and after the last `separator`; the second is empty if there
// is none.
std::pair<absl::string_view, absl::string_view> SplitAtLast(absl::string_view text,
                                                            absl::string_view separator) {
  const std::size_t at = text.rfind(separator);
  if (at == absl::string_view::npos) return {text, ""};
  return {text.substr(0, at), text.substr(at + separator.size())};
}

// Makes an error of a field from the parser's own words, where these name a value that an option
// refuses.
absl::Status StatusOf(const CLI::App& app, const CLI::ParseError& error) {
  const std::string text = error.what();
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "Could not convert: ")) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(rest, absl::MaxSplits(" = ", 1));
    return InvalidField({.field = parts.first,
                         .value = parts.second,
                         .rule = "is no value of this option, or out of its range"});
  }
  absl::Status status = absl::InvalidArgumentError(text);
  if (dynamic_cast<const CLI::ValidationError*>(&error) == nullptr) return status;
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(": ", 1));
  const auto& [field, why] = parts;
  if (const auto [value, range] = SplitAtLast(why, " not in range "); !range.empty()) {
    const std::pair<absl::string_view, absl::string_view> ends = SplitAtLast(range, " to ");
    return InvalidField({.field = field,
                         .value = std::string(absl::StripPrefix(value, "Value ")),
                         .rule = RangeRule(ends.first, ends.second, FindOption(app, field))});
  }
  if (const auto [value, most] = SplitAtLast(why, kMustBeAtMost); !most.empty()) {
    return InvalidField({.field = field,
                         .value = std::string(value),
                         .rule = absl::StrCat("must be at most ", most)});
  }
  if (const auto [value, names] = SplitAtLast(why, " not in {"); !names.empty()) {
    const std::string rule = absl::StrCat(
        "must be one of ", absl::StrReplaceAll(absl::StripSuffix(names, "}"), {{",", ", "}}));
    const absl::Status of_field =
        InvalidField({.field = field, .value = std::string(value), .rule = rule});
    if (const auto detail = of_field.GetPayload(kErrorDetailUrl))
      status.SetPayload(kErrorDetailUrl, *detail);
  }
  return status;
}

ExitCode ReportParseError(const CLI::App& app, Context& context,
                          const std::vector<std::string>& arguments, const CLI::ParseError& error) {
  const bool asks_version = dynamic_cast<const CLI::CallForVersion*>(&error) != nullptr;
  if (asks_version && AsksForJson(arguments)) {
    PrintJson(context, VersionJson());
    return ExitCode::kDone;
  }
  if (error.get_exit_code() == 0) {  // --help, --version
    app.exit(error, context.terminal.out, context.terminal.err);
    return ExitCode::kDone;
  }
  if (AsksForJson(arguments)) context.output = OutputFormat::kJson;
  return Usage(app, context, StatusOf(app, error));
}

// Adds the commands on jobs and workers without their noun, under a heading of their own.
void AddShortForms(CLI::App& app, Context& context) {
  const auto all = [](CLI::App*) { return true; };
  const std::size_t num_before = app.get_subcommands(all).size();
  AddJobShortForms(app, context);
  AddWorkerShortForms(app, context);
  const std::vector<CLI::App*> commands = app.get_subcommands(all);
  for (std::size_t i = num_before; i < commands.size(); ++i) commands[i]->group("Short forms");
}

}  // namespace

void AddGlobalOptions(CLI::App& app, Context& context) {
  app.add_option("--coordinator", context.coordinator,
                 "Where the coordinator listens: HOST:PORT or unix:PATH; of several coordinators "
                 "with one state, all of them, separated by commas")
      ->type_name("ADDR");
  app.add_option("--tls-certificate", context.tls.certificate,
                 "PEM file of your certificate, for HOST:PORT")
      ->type_name("FILE");
  app.add_option("--tls-key", context.tls.key, "PEM file of its private key")->type_name("FILE");
  app.add_option("--tls-authority", context.tls.authority,
                 "PEM file of the authority that the coordinator's certificate must be of")
      ->type_name("FILE");
  app.add_flag("--insecure", context.insecure, "Dial HOST:PORT without TLS");
  app.add_option("-o,--output", context.output, "How to print")
      ->transform(
          OneOf<OutputFormat>({{"text", OutputFormat::kText}, {"json", OutputFormat::kJson}}))
      ->type_name("")
      ->default_str("text");
  app.add_option("--timeout", context.timeout_seconds,
                 "Seconds that a call to the coordinator may take, with retries")
      ->type_name("SECONDS")
      ->check(CLI::PositiveNumber)
      ->default_str("15");
  app.set_version_flag("--version", std::string("takt ") + kTaktVersion);
}

std::unique_ptr<CLI::App> MakeApp(Context& context) {
  auto app = std::make_unique<CLI::App>("Pipeline-parallel training of Transformers, as a service",
                                        "takt");
  app->fallthrough();  // global options may come after the command
  app->get_formatter()->column_width(34);
  AddGlobalOptions(*app, context);
  AddInit(*app, context);
  AddSchema(*app, context);
  AddLocal(*app, context);
  AddPlan(*app, context, WithLocalWorkers);
  AddProfile(*app, context);
  AddJob(*app, context);
  AddWorker(*app, context);
  AddUi(*app, context);
  AddCluster(*app, context);
  AddSchedule(*app, context);
  AddCheckpoint(*app, context);
  AddData(*app, context);
  AddEval(*app, context);
  AddGenerate(*app, context);
  AddCerts(*app, context);
  AddAdmin(*app, context);
  AddCompletion(*app, context);
  AddComplete(*app, context);
  AddVersion(*app, context);
  AddShortForms(*app, context);
  app->footer(kFooter);
  FinishCommand(*app);
  return app;
}

ExitCode RunApp(const std::vector<std::string>& arguments, Context& context) {
  const std::unique_ptr<CLI::App> app = MakeApp(context);
  try {
    app->parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ParseError& error) {
    return ReportParseError(*app, context, arguments, error);
  }
  if (!context.action) {
    return Usage(*app, context,
                 absl::InvalidArgumentError(
                     absl::StrCat("a command is missing after ", PathOf(*CommandOf(*app)))));
  }
  const absl::StatusOr<ExitCode> code = context.action();
  if (code.ok()) return *code;
  PrintError(context, code.status());
  return ExitCodeOf(code.status());
}

}  // namespace takt::cli
