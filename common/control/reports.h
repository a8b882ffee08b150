// SPDX-License-Identifier: Apache-2.0
// The messages that a worker sends on the bulk stream (takt.v1.AttachmentService.StreamBulk), and
// the coordinator's answer. attachment_service.proto says what each of them means.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/base/id.h"
#include "common/base/log.h"
#include "common/checkpoint/manifest.h"
#include "common/control/job_key.h"

namespace takt::control {

struct BulkHello {
  std::string worker, incarnation;
};

// Reports one rank's part of one step.
struct RankStepReport {
  JobKey key;
  Rank rank;
  std::int64_t sequence = 0;  // 1, 2, ... of all reports of this rank and generation
  StepId step;
  double step_seconds = 0;
  double busy_seconds = 0;  // of the compute lane
  // Equal on all ranks. Older workers fill them in on rank 0 only.
  double loss = 0, grad_norm = 0, learning_rate = 0;
  std::int64_t tokens = 0;
  std::optional<double> validation_loss;
  // An evaluation sets it on the ranks that read the validation set.
  std::optional<double> validation_bytes_per_token;
  // How unevenly the ranks that share this rank's experts are loaded: the most rows of any of them,
  // divided by their mean, averaged over blocks and microbatches. 0: no ranks share experts.
  double expert_imbalance = 0;
};

// Reports one rank's part of a checkpoint: either its files are written, or there is an `error`.
struct CheckpointReport {
  JobKey key;
  Rank rank;
  std::int64_t sequence = 0;  // counts on with those of RankStepReport
  StepId step;
  std::vector<checkpoint::FileEntry> files;
  double snapshot_seconds = 0;  // how long training paused
  double write_seconds = 0;
  std::string error;  // empty: the files are written
};

// Carries the measurements of one step of one rank.
struct StepTrace {
  JobKey key;
  std::string trace;  // common/trace/encoding.h
};

// A line that a worker wrote to its log while it held a rank of a job.
struct LogLine {
  std::string job;
  std::string worker;
  Rank rank;
  StepId step;  // the last step that the rank had completed
  LogLevel level = LogLevel::kInfo;
  std::string text;
  std::int64_t unix_nanos = 0;
};

using BulkMessage = std::variant<BulkHello, RankStepReport, CheckpointReport, StepTrace, LogLine>;

// Says that all reports of `key` up to `sequence` are durable.
struct ReportsAcknowledged {
  JobKey key;
  std::int64_t sequence = 0;
};

}  // namespace takt::control
