// SPDX-License-Identifier: Apache-2.0
// Makes what a worker tells a coordinator that does not know the job of the rank that it holds.
#pragma once

#include <optional>
#include <string>

#include "common/control/assignment.h"
#include "common/control/attachment.h"

namespace takt::session {

// What is kept of an assignment for that.
struct SharedPart {
  std::string text;                      // control::SharedText
  std::string hash;                      // of `text`, which is the same on all ranks
  std::string schedule;                  // its name
  std::optional<std::string> directory;  // of checkpoints, as the job names it
};

SharedPart SharedPartOf(const control::Assignment& assignment);

// Adds what is known of the job, and what is in its directory of checkpoints, to the description of
// a rank of it. root: the directories of jobs lie under this one. Blocks: for the disk.
void DescribeJob(const SharedPart& part, const std::string& root,
                 control::RankDescription& description);

}  // namespace takt::session
