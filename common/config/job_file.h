// SPDX-License-Identifier: Apache-2.0
// Job files: YAML or JSON text to takt.v1.JobSpec, driven by the proto alone, so that a new field
// needs no code here. Keys are the proto's field names, enumerators their short names in lower case
// (`gpt2`, `bytes`).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace takt::v1 {
class JobSpec;
}

namespace takt::config {

struct JobFileOptions {
  std::string name = "job";  // of the file, for errors
  // "a.b=value", applied to the file before it is read as a spec; `value` is YAML; elements of
  // lists are a.0.b.
  std::vector<std::string> overrides;
};

// Everything wrong at once: unknown and repeated keys, wrong types, unknown enumerators.
// Accepts: `null` for a section, `auto` or `null` where the proto says accepts_auto, one value
// where it has a list. Does not judge values: that is ToJobSpec (job_spec_serde.h). Errors:
// kInvalidArgument (FieldError with `where`).
absl::StatusOr<v1::JobSpec> ParseJobFile(std::string_view text, const JobFileOptions& options);

// `status` with a place in the file for every FieldError that has none: where its field is written
// or, if it is missing, the section that lacks it. For what ToJobSpec, FillFromFiles or a server
// find in a spec that came from this text.
absl::Status LocateErrors(const absl::Status& status, std::string_view text,
                          const JobFileOptions& options);

// JSON that ParseJobFile reads back to the same spec. One line if `indent` is negative.
std::string FormatJobFile(const v1::JobSpec& spec, int indent = 2);

}  // namespace takt::config
