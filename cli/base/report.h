// SPDX-License-Identifier: Apache-2.0
// How commands print: one JSON object a line or text, errors with every field that is wrong.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "cli/base/context.h"
#include "cli/base/message_json.h"

namespace takt::cli {

// One line of JSON on stdout, flushed so that a reader of a stream sees it at once.
void PrintJson(const Context& context, const Json& json);

// One line of talk on stderr.
void Say(const Context& context, std::string_view line);

// On stderr: a line for each field that is wrong (where, field, value, rule, fix), else the
// message. With `-o json` one object
// {"error": {"code", "exit_code", "message", "violations": [{"where", "field", "value", "rule",
// "fix"}...]}}.
void PrintError(const Context& context, const absl::Status& status);

Json ViolationsJson(const absl::Status& status);

}  // namespace takt::cli
