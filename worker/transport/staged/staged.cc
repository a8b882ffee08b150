// SPDX-License-Identifier: Apache-2.0
#include "worker/transport/staged/staged.h"

#include <array>
#include <utility>

#include "common/base/status.h"

namespace takt::transport {
namespace {

using backend::Backend;
using backend::Buffer;
using backend::StreamKind;

class StagedSend final : public SendChannel {
 public:
  StagedSend(std::unique_ptr<SendChannel> inner, std::unique_ptr<Backend> backend, Buffer buffer)
      : inner_(std::move(inner)), backend_(std::move(backend)), buffer_(std::move(buffer)) {}

  absl::Status Send(const MessageTag& tag, std::span<const std::byte> data) override {
    const std::span<std::byte> staged(buffer_.data(), data.size());
    RETURN_IF_ERROR(backend_->CopyToHost(data.data(), staged));
    RETURN_IF_ERROR(backend_->Synchronize());
    return inner_->Send(tag, staged);
  }

 private:
  const std::unique_ptr<SendChannel> inner_;
  const std::unique_ptr<Backend> backend_;
  const Buffer buffer_;
};

class StagedRecv final : public RecvChannel {
 public:
  // A message on its way to the device.
  struct Stage {
    Buffer buffer;
    std::unique_ptr<backend::Event> copied;
  };
  StagedRecv(std::unique_ptr<RecvChannel> inner, std::unique_ptr<Backend> backend,
             std::array<Stage, 2> stages)
      : inner_(std::move(inner)), backend_(std::move(backend)), stages_(std::move(stages)) {}

  absl::Status Recv(const MessageTag& tag, std::span<std::byte> data) override {
    Stage& stage = stages_[next_];
    next_ = (next_ + 1) % stages_.size();
    RETURN_IF_ERROR(stage.copied->Wait());
    const std::span<std::byte> staged(stage.buffer.data(), data.size());
    RETURN_IF_ERROR(inner_->Recv(tag, staged));
    RETURN_IF_ERROR(backend_->CopyFromHost(staged, data.data()));
    return backend_->stream()->Record(*stage.copied);
  }

  backend::Stream* stream() override { return backend_->stream(); }

 private:
  const std::unique_ptr<RecvChannel> inner_;
  const std::unique_ptr<Backend> backend_;
  std::array<Stage, 2> stages_;
  std::size_t next_ = 0;
};

class StagedTransport final : public DeviceTransport {
 public:
  StagedTransport(Transport& inner, backend::BackendFactory& backends)
      : inner_(inner), backends_(backends) {}

  absl::StatusOr<std::unique_ptr<SendChannel>> OpenSend(Rank peer, const std::string& name,
                                                        std::size_t max_bytes) override {
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, backends_.Create(StreamKind::kTransfer));
    ASSIGN_OR_RETURN(Buffer buffer, backend->AllocateHost(max_bytes));
    ASSIGN_OR_RETURN(std::unique_ptr<SendChannel> channel, inner_.OpenSend(peer, name, max_bytes));
    return std::make_unique<StagedSend>(std::move(channel), std::move(backend), std::move(buffer));
  }

  absl::StatusOr<std::unique_ptr<RecvChannel>> OpenRecv(Rank peer, const std::string& name,
                                                        std::size_t max_bytes) override {
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, backends_.Create(StreamKind::kTransfer));
    std::array<StagedRecv::Stage, 2> stages;
    for (StagedRecv::Stage& stage : stages) {
      ASSIGN_OR_RETURN(stage.buffer, backend->AllocateHost(max_bytes));
      ASSIGN_OR_RETURN(stage.copied, backend->stream()->CreateEvent());
    }
    ASSIGN_OR_RETURN(std::unique_ptr<RecvChannel> channel, inner_.OpenRecv(peer, name, max_bytes));
    return std::make_unique<StagedRecv>(std::move(channel), std::move(backend), std::move(stages));
  }

  absl::StatusOr<std::unique_ptr<engine::Collective>> OpenSums(
      const CollectiveOptions& group) override {
    ASSIGN_OR_RETURN(std::unique_ptr<engine::Collective> sums, CreateCollective(&inner_, group));
    return StageCollective(std::move(sums), backends_);
  }

  void Abort() override { inner_.Abort(); }
  absl::Status status() const override { return inner_.status(); }

 private:
  Transport& inner_;
  backend::BackendFactory& backends_;
};

class StagedCollective final : public engine::Collective {
 public:
  StagedCollective(std::unique_ptr<engine::Collective> inner, std::unique_ptr<Backend> backend)
      : inner_(std::move(inner)), backend_(std::move(backend)) {}

  int size() const override { return inner_->size(); }

  absl::Status AllReduceSum(StepId step, std::span<float> data) override {
    if (buffer_.bytes() < data.size_bytes()) {
      ASSIGN_OR_RETURN(buffer_, backend_->AllocateHost(data.size_bytes()));
    }
    const std::span<float> staged = buffer_.float_span().first(data.size());
    const auto bytes = std::as_writable_bytes(data);
    RETURN_IF_ERROR(backend_->CopyToHost(bytes.data(), std::as_writable_bytes(staged)));
    RETURN_IF_ERROR(backend_->Synchronize());
    RETURN_IF_ERROR(inner_->AllReduceSum(step, staged));
    RETURN_IF_ERROR(backend_->CopyFromHost(std::as_bytes(staged), bytes.data()));
    return backend_->Synchronize();
  }
  absl::Status AllReduceSum(StepId step, std::span<double> data) override {
    return inner_->AllReduceSum(step, data);
  }

 private:
  const std::unique_ptr<engine::Collective> inner_;
  const std::unique_ptr<Backend> backend_;
  Buffer buffer_;  // as large as the largest so far: it grows in the first step only
};

}  // namespace

std::unique_ptr<DeviceTransport> StageTransport(Transport& inner,
                                                backend::BackendFactory& backends) {
  if (backends.memory_is_host()) return nullptr;
  return std::make_unique<StagedTransport>(inner, backends);
}

absl::StatusOr<std::unique_ptr<engine::Collective>> StageCollective(
    std::unique_ptr<engine::Collective> inner, backend::BackendFactory& backends) {
  if (backends.memory_is_host()) return inner;
  ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, backends.Create(StreamKind::kReduce));
  return std::make_unique<StagedCollective>(std::move(inner), std::move(backend));
}

}  // namespace takt::transport
