// SPDX-License-Identifier: Apache-2.0
// What a worker sends on the bulk stream (takt.v1.AttachmentService.StreamBulk), and the
// coordinator's answer. The meaning of each message is in attachment_service.proto.
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

// One rank's part of one step.
struct RankStepReport {
  JobKey key;
  Rank rank;
  std::int64_t sequence = 0;  // 1, 2, ... of all reports of this rank and generation
  StepId step;
  double step_seconds = 0;
  double busy_seconds = 0;  // of the compute lane
  // Rank 0 alone knows these.
  double loss = 0, grad_norm = 0, learning_rate = 0;
  std::int64_t tokens = 0;
  std::optional<double> validation_loss;
};

// One rank's part of a checkpoint: its files are written, or `error`.
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

// What was measured of one step of one rank.
struct StepTrace {
  JobKey key;
  std::string trace;  // common/trace/encoding.h
};

// One line that a worker wrote while it held a rank of a job.
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

// All reports of `key` up to `sequence` are durable.
struct ReportsAcknowledged {
  JobKey key;
  std::int64_t sequence = 0;
};

}  // namespace takt::control
