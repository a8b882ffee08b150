// SPDX-License-Identifier: Apache-2.0
// Turns records into messages and back. What the store keeps and what RPCs answer has one form.
#pragma once

#include "absl/status/statusor.h"
#include "coordinator/store/record.h"
#include "takt/v1/job.pb.h"
#include "takt/v1/job_record.pb.h"
#include "takt/v1/job_service.pb.h"
#include "takt/v1/worker_record.pb.h"

namespace takt::store {

v1::StepReport ToProto(const StepRecord& step);
// The report does not name its job.
StepRecord FromProto(const v1::StepReport& report, const std::string& job_id);

// Fills in what the plan says, but for its warnings.
void SetPlan(const PlanSummary& plan, v1::Job& job);

// A job as users see it. eta_seconds is derived from the last step, or the prediction, while the
// job runs.
v1::Job ToProto(const JobRecord& job);

// A job as the store keeps it.
v1::JobRecord ToRecordProto(const JobRecord& job);
JobRecord FromProto(const v1::JobRecord& record);

v1::WorkerRecord ToProto(const WorkerRecord& worker);
WorkerRecord FromProto(const v1::WorkerRecord& worker);

v1::LogLine ToProto(const LogRecord& log);
LogRecord FromProto(const v1::LogLine& line, const std::string& job_id);

}  // namespace takt::store
