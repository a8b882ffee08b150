// SPDX-License-Identifier: Apache-2.0
#include "worker/session/rank_connections.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"

namespace takt::session {

absl::Status RankConnections::Connect(const model::Model& model, transport::Rendezvous& rendezvous,
                                      backend::BackendFactory& backends) {
  RETURN_IF_ERROR(OpenTransports(rendezvous, backends));
  const control::Assignment& assignment = *options_.assignment;
  RankGroups::Options groups{.rank = assignment.rank,
                             .mesh = assignment.mesh,
                             .partition = &assignment.partition,
                             .program = &assignment.program,
                             .tied_embeddings = !model.layers.back().tied_parameters.empty(),
                             .expert_size = model.experts.size,
                             .generation = assignment.key.generation.value(),
                             .sparse_meeting = assignment.sparse_meeting,
                             .sharing_chains = assignment.sharing_chains,
                             .bucket_bytes = assignment.bucket_bytes};
  if (device_ != nullptr) {
    groups.make_sums = [this](const transport::CollectiveOptions& group) {
      return device_->OpenSums(group);
    };
  }
  ASSIGN_OR_RETURN(groups_, RankGroups::Connect(*host_, groups));
  return absl::OkStatus();
}

absl::Duration OperationTimeout(double predicted_step_seconds) {
  constexpr double kStepsLate = 10;
  constexpr absl::Duration kShortest = absl::Minutes(5), kLongest = absl::Hours(24 * 7);
  return std::clamp(absl::Seconds(kStepsLate * predicted_step_seconds), kShortest, kLongest);
}

absl::Status RankConnections::OpenTransports(transport::Rendezvous& rendezvous,
                                             backend::BackendFactory& backends) {
  const control::Assignment& assignment = *options_.assignment;
  const transport::TransportOptions transport_options{
      .rank = assignment.rank,
      .num_ranks = assignment.mesh.size(),
      .job = assignment.key.job,
      .generation = assignment.key.generation.value(),
      .secret = assignment.secret,
      .data_address = options_.data.address,
      .data_port = options_.data.port,
      .data_advertise = options_.data.advertise,
      .plain_sockets = assignment.plain_sockets,
      .sparse_meeting = assignment.sparse_meeting,
      .operation_timeout = OperationTimeout(assignment.predicted_step_seconds)};
  ASSIGN_OR_RETURN(auto host,
                   transport::CreateTransport(transport_options, assignment.transport, rendezvous));
  {
    absl::MutexLock lock(&mutex_);
    host_ = std::move(host);
    RETURN_IF_ERROR(abort_reason_);
  }
  ASSIGN_OR_RETURN(auto device, transport::CreateDeviceTransport({.transport = transport_options,
                                                                  .kind = assignment.transport,
                                                                  .nccl = options_.nccl,
                                                                  .on_stuck = options_.on_stuck},
                                                                 rendezvous, *host_, backends));
  absl::MutexLock lock(&mutex_);
  device_ = std::move(device);
  return abort_reason_;
}

void RankConnections::Abort(const absl::Status& reason) {
  absl::MutexLock lock(&mutex_);
  abort_reason_ = reason;
  if (host_ != nullptr) host_->Abort();
  if (device_ != nullptr) device_->Abort();
}

absl::Status RankConnections::Poisoned() const {
  absl::MutexLock lock(&mutex_);
  return device_ == nullptr ? absl::OkStatus() : device_->poisoned();
}

transport::Transport& RankConnections::messages() const {
  return device_ != nullptr ? *device_ : *host_;
}

bool RankConnections::waits_in_kernels() const {
  return device_ != nullptr && device_->waits_in_kernels();
}

}  // namespace takt::session
