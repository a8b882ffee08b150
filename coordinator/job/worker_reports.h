// SPDX-License-Identifier: Apache-2.0
// What workers tell of the jobs that they hold ranks of.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/job/decide.h"
#include "coordinator/job/session.h"
#include "coordinator/store/record.h"

namespace takt::job {

// takt.v1.JobUpdate.
struct JobUpdate {
  JobKey key;
  Rank rank;
  RankPhase phase = RankPhase::kAdmitted;  // kAdmitted or a terminal one
  std::string error;
  bool invalid_input = false;
  std::vector<FieldError> violations;  // of invalid_input
  std::optional<store::RankStatus> status;
  StepId resumed_step;             // of kAdmitted
  std::vector<std::string> notes;  // of kAdmitted, of rank 0
  std::string kernel_plan;         // of kAdmitted, of rank 0; empty: none
};

// takt.v1.CheckpointReport.
struct CheckpointReport {
  Rank rank;
  std::int64_t sequence = 0;
  StepId step;
  std::vector<checkpoint::FileEntry> files;
  double snapshot_seconds = 0, write_seconds = 0;
  std::string error;  // empty: its files are written
};

// takt.v1.CheckpointCommitted.
struct CheckpointCommitted {
  JobKey key;
  StepId step;
  std::string error;  // empty: it is visible
};

}  // namespace takt::job
