// SPDX-License-Identifier: Apache-2.0
// Runs Gloo on a socket that was connected, and introduced, elsewhere. Only files of gloo/ include
// this.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "common/net/socket.h"
#include "gloo/transport/context.h"
#include "gloo/transport/tcp/device.h"

namespace takt::transport {

// Makes the device of the contexts below. Throws Gloo's exceptions: this host has no such address.
std::shared_ptr<gloo::transport::tcp::Device> CreateAdoptingDevice(const std::string& data_address);

// Makes a context of two ranks, in which this one is `index` (0 or 1) and `socket` connects the
// only pair. Gloo never accepts a connection of its own: it would take the first one for the peer,
// and parse what comes with assertions that end the process. Throws Gloo's exceptions.
std::shared_ptr<gloo::transport::Context> AdoptSocket(
    const std::shared_ptr<gloo::transport::tcp::Device>& device, int index,
    std::chrono::milliseconds timeout, net::Socket socket);

}  // namespace takt::transport
