// SPDX-License-Identifier: Apache-2.0
// Makes takt.v1.RendezvousService the transport's Rendezvous for one generation of one job.
#pragma once

#include <grpcpp/channel.h>

#include <functional>
#include <memory>

#include "common/control/job_key.h"
#include "worker/session/abortable_rendezvous.h"

namespace takt::worker_rpc {

// Returns the channel to the coordinator that leads, or may lead; thread-safe.
using FindChannel = std::function<std::shared_ptr<grpc::Channel>()>;

std::unique_ptr<session::AbortableRendezvous> CreateRendezvousClient(FindChannel find_channel,
                                                                     control::JobKey key);

}  // namespace takt::worker_rpc
