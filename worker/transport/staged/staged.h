// SPDX-License-Identifier: Apache-2.0
// Carries messages and sums of device memory over a transport of host memory, through pinned
// buffers of the host.
#pragma once

#include <memory>

#include "worker/backend/backend.h"
#include "worker/transport/device_transport.h"
#include "worker/transport/transport.h"

namespace takt::transport {

// Returns a transport whose channels carry memory of the backends' device over channels of `inner`.
// Returns null if that memory is the host's, which `inner` itself carries. Each channel has a
// stream and host buffers for its largest message: one to send from, and two to receive into, so
// that the copy of a message to the device runs while the next one comes in (RecvChannel::stream).
// After an abort the device may use the memory of a message until its channel ends, which waits for
// it.  inner, backends: borrowed for the transport's life.
std::unique_ptr<DeviceTransport> StageTransport(Transport& inner,
                                                backend::BackendFactory& backends);

}  // namespace takt::transport
