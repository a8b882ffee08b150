// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/device_ends.h"

#include <string>
#include <utility>

#include "common/base/status.h"

namespace takt::conformance {
namespace {

using transport::MessageTag;

// Waits until all work that was left on `stream` is done. Null: there is none.
absl::Status Finish(backend::Stream* stream) {
  if (stream == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::unique_ptr<backend::Event> event, stream->CreateEvent());
  RETURN_IF_ERROR(stream->Record(*event));
  return event->Wait();
}

// An end of a channel with the device memory that its messages go through.
class Copying {
 public:
  Copying(DeviceRank& rank, std::size_t max_bytes)
      : rank_(rank),
        backend_(rank.device().CreateMemory(backend::StreamKind::kTransfer).value()),
        buffer_(backend_->Allocate(max_bytes, MemoryKind::kMessages).value()) {}

 protected:
  // May reach beyond it: for the channel to refuse.
  std::span<std::byte> Of(std::size_t bytes) const { return {buffer_.data(), bytes}; }

  DeviceRank& rank_;
  const std::unique_ptr<backend::MemoryBackend> backend_;
  const backend::Buffer buffer_;
};

class Sender final : public transport::SendChannel, Copying {
 public:
  Sender(DeviceRank& rank, std::size_t max_bytes, std::unique_ptr<transport::SendChannel> inner)
      : Copying(rank, max_bytes), inner_(std::move(inner)) {}

  absl::Status Send(const MessageTag& tag, std::span<const std::byte> data) override {
    if (data.size() <= buffer_.bytes()) {
      RETURN_IF_ERROR(backend_->CopyFromHost(data, buffer_.data()));
      RETURN_IF_ERROR(backend_->Synchronize());
    }
    RETURN_IF_ERROR(inner_->Send(tag, Of(data.size())));
    RETURN_IF_ERROR(Finish(inner_->stream()));
    return rank_.transport().status();
  }

 private:
  const std::unique_ptr<transport::SendChannel> inner_;
};

class Receiver final : public transport::RecvChannel, Copying {
 public:
  Receiver(DeviceRank& rank, std::size_t max_bytes, std::unique_ptr<transport::RecvChannel> inner)
      : Copying(rank, max_bytes), inner_(std::move(inner)) {}

  absl::Status Recv(const MessageTag& tag, std::span<std::byte> data) override {
    RETURN_IF_ERROR(inner_->Recv(tag, Of(data.size())));
    RETURN_IF_ERROR(Finish(inner_->stream()));
    RETURN_IF_ERROR(rank_.transport().status());
    RETURN_IF_ERROR(backend_->CopyToHost(buffer_.data(), data));
    return backend_->Synchronize();
  }

 private:
  const std::unique_ptr<transport::RecvChannel> inner_;
};

class WaitingTransport final : public transport::Transport {
 public:
  explicit WaitingTransport(std::unique_ptr<DeviceRank> rank) : rank_(std::move(rank)) {}
  // Tests end their ranks one after the other.
  ~WaitingTransport() override { rank_->transport().Abort(); }

  absl::StatusOr<std::unique_ptr<transport::SendChannel>> OpenSend(Rank peer,
                                                                   const std::string& name,
                                                                   std::size_t max_bytes) override {
    ASSIGN_OR_RETURN(auto inner, rank_->transport().OpenSend(peer, name, max_bytes));
    return std::make_unique<Sender>(*rank_, max_bytes, std::move(inner));
  }
  absl::StatusOr<std::unique_ptr<transport::RecvChannel>> OpenRecv(Rank peer,
                                                                   const std::string& name,
                                                                   std::size_t max_bytes) override {
    ASSIGN_OR_RETURN(auto inner, rank_->transport().OpenRecv(peer, name, max_bytes));
    return std::make_unique<Receiver>(*rank_, max_bytes, std::move(inner));
  }
  void Abort() override { rank_->transport().Abort(); }
  absl::Status status() const override { return rank_->transport().status(); }

 private:
  const std::unique_ptr<DeviceRank> rank_;
};

}  // namespace

std::unique_ptr<transport::Transport> WithDeviceEnds(std::unique_ptr<DeviceRank> rank) {
  return std::make_unique<WaitingTransport>(std::move(rank));
}

}  // namespace takt::conformance
