// SPDX-License-Identifier: Apache-2.0
// Makes takt.v1.RendezvousService the transport's Rendezvous for one generation of one job.
#pragma once

#include <grpcpp/channel.h>

#include <memory>

#include "common/control/job_key.h"
#include "worker/session/abortable_rendezvous.h"

namespace takt::worker_rpc {

std::unique_ptr<session::AbortableRendezvous> CreateRendezvousClient(
    std::shared_ptr<grpc::Channel> channel, control::JobKey key);

}  // namespace takt::worker_rpc
