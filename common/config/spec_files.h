// SPDX-License-Identifier: Apache-2.0
// Completes a spec before a client submits it, so that nobody else needs the client's files.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace takt::v1 {
class JobSpec;
}

namespace takt::config {

// Returns the text of a file. The error says why it cannot be read.
using ReadFile = std::function<absl::StatusOr<std::string>(const std::string& path)>;

// Prefixes every relative path in the spec with `directory`.
void MakePathsAbsolute(v1::JobSpec& spec, std::string_view directory);

// Fills the model's fields from the config.json of `init_from` or `hf_config`, with them
// data.document_end if documents are separate and the job does not give it, and schedule_csv from
// `schedule: file:PATH`. A field that the job gives as well must agree with the file, except
// `context`, which may be shorter than the positions. A second call changes nothing. Errors:
// kInvalidArgument (FieldError): a file that cannot be read or is wrong, a field that contradicts
// it.
absl::Status FillFromFiles(v1::JobSpec& spec, const ReadFile& read_file);

}  // namespace takt::config
