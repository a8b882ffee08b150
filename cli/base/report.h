// SPDX-License-Identifier: Apache-2.0
// Prints what commands say: JSON objects, lines for people, and errors with every field that is
// wrong.
#pragma once

#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "cli/base/context.h"
#include "cli/base/exit_code.h"
#include "cli/base/message_json.h"

namespace takt::cli {

// Prints one line of JSON on stdout and flushes it, so that a reader of a stream sees it at once.
void PrintJson(const Context& context, const Json& json);

// Prints one line on stderr.
void Say(const Context& context, std::string_view line);

// Prints an error on stderr: a line for each field that is wrong (where, field, value, rule, fix),
// or without such fields the message. With `-o json` it prints one object
// {"error": {"code", "exit_code", "message", "violations": [{"where", "field", "value", "rule",
// "fix"}...]}}.
// ends_with: the exit code, where it is not that of the status.
void PrintError(const Context& context, const absl::Status& status,
                std::optional<ExitCode> ends_with = std::nullopt);

Json ViolationsJson(const absl::Status& status);

}  // namespace takt::cli
