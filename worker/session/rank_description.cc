// SPDX-License-Identifier: Apache-2.0
#include "worker/session/rank_description.h"

#include <algorithm>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/base/status.h"
#include "common/checkpoint/directory.h"
#include "common/checkpoint/hash.h"
#include "common/checkpoint/layout.h"
#include "common/checkpoint/owner.h"
#include "common/control/shared_assignment.h"
#include "common/data/data_root.h"

namespace takt::session {
namespace {

void Raise(Generation& highest, Generation seen) { highest = std::max(highest, seen); }

absl::Status Inspect(const std::string& directory, control::RankDescription& description) {
  const control::JobKey& key = description.key;
  ASSIGN_OR_RETURN(const std::optional<checkpoint::Owner> owner, checkpoint::ReadOwner(directory));
  if (owner.has_value() && owner->job == key.job)
    Raise(description.highest_generation, owner->generation);
  const absl::StatusOr<std::vector<checkpoint::ListedStep>> steps =
      checkpoint::ListSteps(directory);
  if (absl::IsNotFound(steps.status())) return absl::OkStatus();
  RETURN_IF_ERROR(steps.status());
  for (const checkpoint::ListedStep& step : *steps) {
    if (step.manifest.has_value() && step.manifest->job == key.job) {
      Raise(description.highest_generation, step.manifest->generation);
      // Steps of earlier generations may be of a run that was given up.
      if (step.manifest->generation == key.generation)
        description.saved = std::max(description.saved, step.step);
    }
    const auto name = checkpoint::ParseStepDirectoryName(step.name);
    const auto writer = name.has_value() ? checkpoint::WriterOf(name->suffix) : std::nullopt;
    if (writer.has_value() && writer->job == key.job)
      Raise(description.highest_generation, writer->generation);
  }
  return absl::OkStatus();
}

}  // namespace

SharedPart SharedPartOf(const control::Assignment& assignment) {
  SharedPart part{.text = control::SharedText(assignment), .schedule = assignment.program.schedule};
  part.hash = checkpoint::HashOf(std::as_bytes(std::span(part.text)));
  if (assignment.job.checkpoint.has_value()) part.directory = assignment.job.checkpoint->directory;
  return part;
}

void DescribeJob(const SharedPart& part, const std::string& root,
                 control::RankDescription& description) {
  description.assignment = part.text;
  description.schedule = part.schedule;
  if (!part.directory.has_value()) return;
  const absl::StatusOr<std::string> directory =
      data::ResolveUnderRoot("checkpoint.directory", root, *part.directory);
  const absl::Status status =
      directory.ok() ? Inspect(*directory, description) : directory.status();
  description.directory_error = std::string(status.message());
}

}  // namespace takt::session
