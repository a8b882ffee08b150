// SPDX-License-Identifier: Apache-2.0
#include "common/control/reports_serde.h"

#include "common/control/job_key_serde.h"

namespace takt::control {
namespace {

void Write(const BulkHello& hello, v1::StreamBulkRequest& request) {
  request.mutable_hello()->set_worker(hello.worker);
  request.mutable_hello()->set_incarnation(hello.incarnation);
}

void Write(const RankStepReport& report, v1::StreamBulkRequest& request) {
  v1::RankStepReport& proto = *request.mutable_step();
  SetKey(report.key, proto);
  proto.set_rank(report.rank.value());
  proto.set_sequence(report.sequence);
  proto.set_step(report.step.value());
  proto.set_loss(report.loss);
  proto.set_grad_norm(report.grad_norm);
  proto.set_learning_rate(report.learning_rate);
  proto.set_tokens(report.tokens);
  proto.set_step_seconds(report.step_seconds);
  proto.set_busy_seconds(report.busy_seconds);
  if (report.validation_loss.has_value()) proto.set_validation_loss(*report.validation_loss);
  proto.set_expert_imbalance(report.expert_imbalance);
  if (report.validation_bytes_per_token.has_value())
    proto.set_validation_bytes_per_token(*report.validation_bytes_per_token);
}

void Write(const CheckpointReport& report, v1::StreamBulkRequest& request) {
  v1::CheckpointReport& proto = *request.mutable_checkpoint();
  SetKey(report.key, proto);
  proto.set_rank(report.rank.value());
  proto.set_sequence(report.sequence);
  proto.set_step(report.step.value());
  for (const checkpoint::FileEntry& file : report.files) *proto.add_files() = ToProto(file);
  proto.set_snapshot_seconds(report.snapshot_seconds);
  proto.set_write_seconds(report.write_seconds);
  proto.set_error(report.error);
}

void Write(const StepTrace& trace, v1::StreamBulkRequest& request) {
  SetKey(trace.key, *request.mutable_trace());
  request.mutable_trace()->set_trace(trace.trace);
}

void Write(const LogLine& line, v1::StreamBulkRequest& request) {
  request.set_job(line.job);
  *request.mutable_log() = ToProto(line);
}

RankStepReport Read(const v1::RankStepReport& proto) {
  RankStepReport report{.key = KeyOf(proto),
                        .rank = Rank(proto.rank()),
                        .sequence = proto.sequence(),
                        .step = StepId(proto.step()),
                        .step_seconds = proto.step_seconds(),
                        .busy_seconds = proto.busy_seconds(),
                        .loss = proto.loss(),
                        .grad_norm = proto.grad_norm(),
                        .learning_rate = proto.learning_rate(),
                        .tokens = proto.tokens()};
  if (proto.has_validation_loss()) report.validation_loss = proto.validation_loss();
  report.expert_imbalance = proto.expert_imbalance();
  if (proto.has_validation_bytes_per_token())
    report.validation_bytes_per_token = proto.validation_bytes_per_token();
  return report;
}

CheckpointReport Read(const v1::CheckpointReport& proto) {
  CheckpointReport report{.key = KeyOf(proto),
                          .rank = Rank(proto.rank()),
                          .sequence = proto.sequence(),
                          .step = StepId(proto.step()),
                          .snapshot_seconds = proto.snapshot_seconds(),
                          .write_seconds = proto.write_seconds(),
                          .error = proto.error()};
  for (const v1::CheckpointFile& file : proto.files()) report.files.push_back(FromProto(file));
  return report;
}

}  // namespace

v1::CheckpointFile ToProto(const checkpoint::FileEntry& file) {
  v1::CheckpointFile proto;
  proto.set_name(file.name);
  proto.set_bytes(file.bytes);
  proto.set_xxh3_128(file.xxh3_128);
  return proto;
}

checkpoint::FileEntry FromProto(const v1::CheckpointFile& proto) {
  return {.name = proto.name(), .bytes = proto.bytes(), .xxh3_128 = proto.xxh3_128()};
}

v1::LogLine ToProto(const LogLine& line) {
  v1::LogLine proto;
  proto.set_worker(line.worker);
  proto.set_rank(line.rank.value());
  proto.set_step(line.step.value());
  proto.set_level(Name(line.level));
  proto.set_text(line.text);
  proto.set_unix_nanos(line.unix_nanos);
  return proto;
}

LogLine FromProto(const v1::LogLine& proto) {
  return {.worker = proto.worker(),
          .rank = Rank(proto.rank()),
          .step = StepId(proto.step()),
          .level = FindLogLevel(proto.level()).value_or(LogLevel::kInfo),
          .text = proto.text(),
          .unix_nanos = proto.unix_nanos()};
}

v1::StreamBulkRequest ToProto(const BulkMessage& message) {
  v1::StreamBulkRequest request;
  std::visit([&](const auto& part) { Write(part, request); }, message);
  return request;
}

std::optional<BulkMessage> FromProto(const v1::StreamBulkRequest& proto) {
  switch (proto.message_case()) {
    case v1::StreamBulkRequest::kHello:
      return BulkHello{proto.hello().worker(), proto.hello().incarnation()};
    case v1::StreamBulkRequest::kStep:
      return Read(proto.step());
    case v1::StreamBulkRequest::kCheckpoint:
      return Read(proto.checkpoint());
    case v1::StreamBulkRequest::kTrace:
      return StepTrace{KeyOf(proto.trace()), proto.trace().trace()};
    case v1::StreamBulkRequest::kLog: {
      LogLine line = FromProto(proto.log());
      line.job = proto.job();
      return line;
    }
    case v1::StreamBulkRequest::MESSAGE_NOT_SET:
      return std::nullopt;
  }
  return std::nullopt;
}

v1::StreamBulkResponse ToProto(const ReportsAcknowledged& acknowledged) {
  v1::StreamBulkResponse proto;
  SetKey(acknowledged.key, proto);
  proto.set_acknowledged_sequence(acknowledged.sequence);
  return proto;
}

ReportsAcknowledged FromProto(const v1::StreamBulkResponse& proto) {
  return {.key = KeyOf(proto), .sequence = proto.acknowledged_sequence()};
}

}  // namespace takt::control
