// SPDX-License-Identifier: Apache-2.0
#include "cli/base/report.h"

#include "absl/strings/str_split.h"
#include "cli/base/text.h"
#include "common/base/status.h"

namespace takt::cli {
namespace {

constexpr char kRed[] = "\x1b[31m", kPlain[] = "\x1b[0m";

void PrintErrorLine(const Terminal& terminal, std::string_view line) {
  terminal.err << (terminal.color ? kRed : "") << "error:" << (terminal.color ? kPlain : "") << ' '
               << Harmless(line) << '\n';
}

}  // namespace

void PrintJson(const Context& context, const Json& json) {
  context.terminal.out << Dump(json) << '\n' << std::flush;
}

void Say(const Context& context, std::string_view line) {
  context.terminal.err << Harmless(line) << '\n' << std::flush;
}

Json ViolationsJson(const absl::Status& status) {
  Json list = Json::array();
  for (const FieldError& error : FieldErrorsOf(status)) {
    list.push_back({{"where", error.where},
                    {"field", error.field},
                    {"value", error.value},
                    {"rule", error.rule},
                    {"fix", error.fix}});
  }
  return list;
}

void PrintError(const Context& context, const absl::Status& status,
                std::optional<ExitCode> ends_with) {
  if (context.json()) {
    Json error;
    error["code"] = absl::StatusCodeToString(status.code());
    error["exit_code"] = static_cast<int>(ends_with.value_or(ExitCodeOf(status)));
    error["message"] = std::string(status.message());
    error["violations"] = ViolationsJson(status);
    context.terminal.err << Dump({{"error", error}}) << '\n' << std::flush;
    return;
  }
  // The message of a single error may have several lines, such as the grid of a schedule.
  const std::string message = status.message().empty() ? absl::StatusCodeToString(status.code())
                                                       : std::string(status.message());
  if (FieldErrorsOf(status).size() > 1) {
    for (const auto line : absl::StrSplit(message, '\n')) {
      PrintErrorLine(context.terminal, std::string(line));
    }
  } else {
    PrintErrorLine(context.terminal, message);
  }
  context.terminal.err << std::flush;
}

}  // namespace takt::cli
