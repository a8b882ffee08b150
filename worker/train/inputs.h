// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/config/job_spec.h"

namespace takt::train {

// Checks that the job's token files are here and can be used, except their token ids. Every rank of
// a job calls this before it waits for any other, also a rank that reads no tokens: then the
// coordinator sees whether the job is wrong or one worker. Emulated layers read no data.
// Errors: as TokenSource::Open, marked as SharedInput.
absl::Status CheckInputs(const config::JobSpec& job, const std::string& data_root, int dp_size);

// Adds what people should know of the files that the job trains on (TokenSource::Notes). Files that
// cannot be read now add nothing.
void AddNotes(const config::JobSpec& job, const std::string& data_root,
              std::vector<std::string>& notes);

}  // namespace takt::train
