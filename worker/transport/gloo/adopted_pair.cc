// SPDX-License-Identifier: Apache-2.0
// For Gloo before 2023, where each pair listens. adopted_pair_2023.cc is for later ones.
#include "worker/transport/gloo/adopted_pair.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <exception>
#include <functional>
#include <mutex>
#include <utility>

#include "absl/synchronization/notification.h"
#include "gloo/transport/tcp/context.h"
#include "gloo/transport/tcp/pair.h"

namespace takt::transport {

namespace {

namespace tcp = gloo::transport::tcp;

// The library allocates this much for a pair, so our view of its layout (missing_memory.h) is
// right.
static_assert(sizeof(tcp::Pair) == 0x380, "not the Gloo of Debian 12: see docs/adr/0005");

// Calls a function once on the thread that handles the events of a device, between two events.
class LoopCall final : public tcp::Handler {
 public:
  // Blocks: until the function was called. Throws what it throws.
  static void Run(tcp::Device& device, std::function<void()> function) {
    LoopCall call(device, std::move(function));
    device.registerDescriptor(call.ready_.fd(), EPOLLIN, &call);
    call.done_.WaitForNotification();
    if (call.error_ != nullptr) std::rethrow_exception(call.error_);
  }

  void handleEvents(int /*events*/) override {
    try {
      function_();
    } catch (...) {
      error_ = std::current_exception();
    }
    device_.unregisterDescriptor(ready_.fd(), this);
    done_.Notify();
  }

 private:
  LoopCall(tcp::Device& device, std::function<void()> function)
      : device_(device), function_(std::move(function)), ready_(eventfd(1, EFD_CLOEXEC)) {}

  tcp::Device& device_;
  const std::function<void()> function_;
  const net::Socket ready_;  // readable from the start
  std::exception_ptr error_;
  absl::Notification done_;
};

class AdoptedPair final : public tcp::Pair {
 public:
  // Runs on the device's thread. Gloo's constructor listens, and its handler of events would accept
  // any connection. But this thread calls that handler, and it is busy here until the socket no
  // longer listens. Closing the descriptor removes it from the device's epoll set.
  AdoptedPair(tcp::Context* context, tcp::Device* device, int rank,
              std::chrono::milliseconds timeout)
      : Pair(context, device, rank, timeout) {
    std::lock_guard lock(m_);
    ::close(fd_);
    fd_ = -1;
  }

  void Adopt(net::Socket socket) {
    std::lock_guard lock(m_);
    fd_ = socket.fd();
    try {
      handleConnected();
    } catch (...) {
      fd_ = -1;  // the socket still owns it and closes it
      throw;
    }
    // From here on Gloo closes it.
    (void)socket.Release();
  }
};

class AdoptingContext final : public tcp::Context {
 public:
  AdoptingContext(std::shared_ptr<tcp::Device> device, int index)
      : Context(std::move(device), index, 2) {}

  void Adopt(net::Socket socket) {
    AdoptedPair* pair = nullptr;
    LoopCall::Run(*device_, [&] {
      pairs_[1 - rank] = std::unique_ptr<gloo::transport::Pair>(
          pair = new AdoptedPair(this, device_.get(), 1 - rank, getTimeout()));
    });
    pair->Adopt(std::move(socket));
  }
};

}  // namespace

std::shared_ptr<tcp::Device> CreateAdoptingDevice(const std::string& data_address) {
  return std::dynamic_pointer_cast<tcp::Device>(tcp::CreateDevice(data_address.c_str()));
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
