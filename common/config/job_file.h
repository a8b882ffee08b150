// SPDX-License-Identifier: Apache-2.0
// Reads job files: YAML or JSON text to takt.v1.JobSpec, and other files likewise to messages of
// their own. The proto alone drives the reading, so a new field needs no code here. Keys are the
// proto's field names, and enumerators have their short names in lower case (`gpt2`, `bytes`).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/yaml_tree.h"

namespace google::protobuf {
class Message;
}

namespace takt::v1 {
class JobSpec;
}

namespace takt::config {

struct JobFileOptions {
  std::string name = "job";  // the file's name, for errors
  // Each is "a.b=value" and changes the file before it is read as a spec. `value` is YAML. Elements
  // of lists are a.0.b.
  std::vector<std::string> overrides;
  YamlRules rules = {};
};

// Reads a spec and reports everything that is wrong at once: unknown and repeated keys, wrong
// types, unknown enumerators. It accepts `null` for a section, `auto` or `null` where the proto
// says accepts_auto, and one value where the proto has a list. ToJobSpec (job_spec_serde.h) checks
// the values. Errors: kInvalidArgument (FieldError with `where`).
absl::StatusOr<v1::JobSpec> ParseJobFile(std::string_view text, const JobFileOptions& options);

// Reads text into another message, which is empty, by the same rules and with the same errors.
absl::Status ParseMessageFile(std::string_view text, const JobFileOptions& options,
                              google::protobuf::Message& message);

// Returns `status` with a place in the file for every FieldError that has none. The place is where
// the field is written or, if the field is missing, the section that lacks it. It is for the errors
// that ToJobSpec, FillFromFiles or a server find in a spec from this text.
absl::Status LocateErrors(const absl::Status& status, std::string_view text,
                          const JobFileOptions& options);

// Returns JSON that ParseJobFile reads back to the same spec. It is one line if `indent` is
// negative.
std::string FormatJobFile(const v1::JobSpec& spec, int indent = 2);

// Return JSON (one line) or YAML that ParseMessageFile reads back to the same message. In the YAML
// a mapping without inner ones takes one line.
std::string FormatMessageJson(const google::protobuf::Message& message);
std::string FormatMessageYaml(const google::protobuf::Message& message);

}  // namespace takt::config
