// SPDX-License-Identifier: Apache-2.0
#include "worker/train/inputs.h"

#include "common/base/status.h"
#include "worker/data/token_source.h"

namespace takt::train {

absl::Status CheckInputs(const config::JobSpec& job, const std::string& data_root, int dp_size) {
  using worker_data::TokenSource;
  if (job.train.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(
      SharedInput(TokenSource::CheckFiles(worker_data::TrainingTokens(job, data_root, dp_size))));
  if (!job.validation.has_value()) return absl::OkStatus();
  return SharedInput(
      TokenSource::CheckFiles(worker_data::ValidationTokens(job, data_root, dp_size)));
}

void AddNotes(const config::JobSpec& job, const std::string& data_root,
              std::vector<std::string>& notes) {
  if (job.train.empty()) return;
  const auto of_files =
      worker_data::TokenSource::Notes(worker_data::TrainingTokens(job, data_root, /*dp_size=*/1));
  if (of_files.ok()) notes.insert(notes.end(), of_files->begin(), of_files->end());
}

}  // namespace takt::train
