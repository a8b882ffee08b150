// SPDX-License-Identifier: Apache-2.0
// For Gloo since 2023, where a device listens for all of its pairs. adopted_pair.cc is for earlier
// ones.
#include <utility>

#include "gloo/transport/tcp/context.h"
#include "gloo/transport/tcp/pair.h"
#include "gloo/transport/tcp/socket.h"
#include "worker/transport/gloo/adopted_pair.h"

namespace takt::transport {

namespace {

namespace tcp = gloo::transport::tcp;

// The library allocates this much for a pair, so our view of its layout (missing_memory.h) is
// right.
static_assert(sizeof(tcp::Pair) == 0x378, "not the Gloo of Debian 13: see docs/adr/0005");

class AdoptedPair final : public tcp::Pair {
 public:
  using Pair::Pair;

  // Does what the device does once it has connected the pair. Gloo closes the socket, also if this
  // throws.
  void Adopt(net::Socket socket) {
    connectCallback(std::make_shared<tcp::Socket>(socket.Release()), tcp::Error::kSuccess);
  }
};

class AdoptingContext final : public tcp::Context {
 public:
  AdoptingContext(std::shared_ptr<tcp::Device> device, int index)
      : Context(std::move(device), index, 2) {}

  void Adopt(net::Socket socket) {
    AdoptedPair* pair = nullptr;
    pairs_[1 - rank] = std::unique_ptr<gloo::transport::Pair>(
        pair = new AdoptedPair(this, device_.get(), 1 - rank, getTimeout()));
    pair->Adopt(std::move(socket));
  }
};

}  // namespace

// The device would take connections of anyone who reaches its port, and keep their sockets. No pair
// of ours needs it, so it listens where only this host reaches it.
std::shared_ptr<tcp::Device> CreateAdoptingDevice(const std::string& data_address) {
  tcp::CreateDevice(data_address.c_str());  // throws if this host has no such address
  return std::dynamic_pointer_cast<tcp::Device>(tcp::CreateDevice("127.0.0.1"));
}

std::shared_ptr<gloo::transport::Context> AdoptSocket(const std::shared_ptr<tcp::Device>& device,
                                                      int index, std::chrono::milliseconds timeout,
                                                      net::Socket socket) {
  auto context = std::make_shared<AdoptingContext>(device, index);
  context->setTimeout(timeout);
  context->Adopt(std::move(socket));
  return context;
}

}  // namespace takt::transport
