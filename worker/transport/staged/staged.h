// SPDX-License-Identifier: Apache-2.0
// Messages and sums of device memory over whatever carries host memory: through buffers of the host
// that the device reaches without a detour.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/backend/backend.h"
#include "worker/transport/collective.h"
#include "worker/transport/device_transport.h"
#include "worker/transport/transport.h"

namespace takt::transport {

// Opens channels of `inner` that take memory of the backends' device. Null: that is the host's,
// which `inner` itself takes. Each channel has a stream and host buffers for its largest message:
// one to send from; two to receive into, so that the copy of a message to the device runs while the
// next one comes in (RecvChannel::stream). After an abort the device may use the memory of a
// message until its channel ends, which waits for it.  inner, backends: borrowed for the
// transport's life.
std::unique_ptr<DeviceTransport> StageTransport(Transport& inner,
                                                backend::BackendFactory& backends);

// `inner`, a group on host memory, whose sums of floats are of the device's; those of doubles stay
// the host's.  backends: borrowed likewise.
absl::StatusOr<std::unique_ptr<Collective>> StageCollective(std::unique_ptr<Collective> inner,
                                                            backend::BackendFactory& backends);

}  // namespace takt::transport
