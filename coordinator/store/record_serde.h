// SPDX-License-Identifier: Apache-2.0
// Records to messages and back: what the store keeps and what RPCs answer have one form.
#pragma once

#include "absl/status/statusor.h"
#include "coordinator/store/record.h"
#include "google/protobuf/timestamp.pb.h"
#include "takt/v1/attachment_service.pb.h"
#include "takt/v1/job.pb.h"
#include "takt/v1/job_record.pb.h"
#include "takt/v1/job_service.pb.h"

namespace takt::store {

google::protobuf::Timestamp ToProto(absl::Time time);
absl::Time FromProto(const google::protobuf::Timestamp& time);

v1::RankStatus ToProto(const RankStatus& status);
RankStatus FromProto(const v1::RankStatus& status);

v1::StepReport ToProto(const StepRecord& step);
// The report does not name its job.
StepRecord FromProto(const v1::StepReport& report, const std::string& job_id);

checkpoint::FileEntry FromProto(const v1::CheckpointFile& file);

// As users see a job. eta_seconds is derived from the last step, or the prediction, while the job
// runs.
v1::Job ToProto(const JobRecord& job);

// As the store keeps it.
v1::JobRecord ToRecordProto(const JobRecord& job);
JobRecord FromProto(const v1::JobRecord& record);

v1::LogLine ToProto(const LogRecord& log);
LogRecord FromProto(const v1::LogLine& line, const std::string& job_id);

}  // namespace takt::store
