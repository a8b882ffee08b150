// SPDX-License-Identifier: Apache-2.0
#include "worker/transport/staged/staged.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "worker/transport/channel_collective.h"

namespace takt::transport {
namespace {

using backend::Buffer;
using backend::MemoryBackend;
using backend::StreamKind;

// A buffer that the device copies to or from. It must not end before that is done.
struct Stage {
  Buffer buffer;
  std::unique_ptr<backend::Event> copied;

  // Waits until the last copy is done that `copied` was recorded behind. The device may hang, so an
  // abort ends the wait.
  absl::Status AwaitCopied(const std::atomic<bool>& aborted) const {
    const absl::Status status = copied->WaitUnless([&aborted] { return aborted.load(); });
    return absl::IsCancelled(status) ? absl::AbortedError("the transport was aborted") : status;
  }
  // Waits until everything is done that `backend` was given.
  absl::Status Await(MemoryBackend& backend, const std::atomic<bool>& aborted) const {
    RETURN_IF_ERROR(backend.stream()->Record(*copied));
    return AwaitCopied(aborted);
  }
};

absl::StatusOr<Stage> MakeStage(MemoryBackend& backend, std::size_t bytes) {
  Stage stage;
  ASSIGN_OR_RETURN(stage.buffer, backend.AllocateHost(bytes));
  ASSIGN_OR_RETURN(stage.copied, backend.stream()->CreateEvent());
  return stage;
}

class StagedSend final : public SendChannel {
 public:
  StagedSend(std::unique_ptr<SendChannel> inner, std::unique_ptr<MemoryBackend> backend,
             Stage stage, const std::atomic<bool>& aborted)
      : inner_(std::move(inner)),
        backend_(std::move(backend)),
        stage_(std::move(stage)),
        aborted_(aborted) {}
  ~StagedSend() override { backend_->Synchronize().IgnoreError(); }

  absl::Status Send(const MessageTag& tag, std::span<const std::byte> data) override {
    const std::span<std::byte> staged(stage_.buffer.data(), data.size());
    RETURN_IF_ERROR(backend_->CopyToHost(data.data(), staged));
    RETURN_IF_ERROR(stage_.Await(*backend_, aborted_));
    return inner_->Send(tag, staged);
  }

 private:
  const std::unique_ptr<SendChannel> inner_;
  const std::unique_ptr<MemoryBackend> backend_;
  const Stage stage_;
  const std::atomic<bool>& aborted_;
};

class StagedRecv final : public RecvChannel {
 public:
  StagedRecv(std::unique_ptr<RecvChannel> inner, std::unique_ptr<MemoryBackend> backend,
             std::array<Stage, 2> stages, const std::atomic<bool>& aborted)
      : inner_(std::move(inner)),
        backend_(std::move(backend)),
        stages_(std::move(stages)),
        aborted_(aborted) {}
  ~StagedRecv() override { backend_->Synchronize().IgnoreError(); }

  absl::Status Recv(const MessageTag& tag, std::span<std::byte> data) override {
    const Stage& stage = stages_[next_];
    next_ = (next_ + 1) % stages_.size();
    RETURN_IF_ERROR(stage.AwaitCopied(aborted_));
    const std::span<std::byte> staged(stage.buffer.data(), data.size());
    RETURN_IF_ERROR(inner_->Recv(tag, staged));
    RETURN_IF_ERROR(backend_->CopyFromHost(staged, data.data()));
    return backend_->stream()->Record(*stage.copied);
  }

  backend::Stream* stream() override { return backend_->stream(); }

 private:
  const std::unique_ptr<RecvChannel> inner_;
  const std::unique_ptr<MemoryBackend> backend_;
  const std::array<Stage, 2> stages_;
  const std::atomic<bool>& aborted_;
  std::size_t next_ = 0;
};

class StagedCollective final : public Collective {
 public:
  StagedCollective(std::unique_ptr<Collective> inner, std::unique_ptr<MemoryBackend> backend,
                   const std::atomic<bool>& aborted)
      : inner_(std::move(inner)), backend_(std::move(backend)), aborted_(aborted) {}
  ~StagedCollective() override { backend_->Synchronize().IgnoreError(); }

  int size() const override { return inner_->size(); }
  int index() const override { return inner_->index(); }

  absl::Status AllReduceSum(StepId step, std::span<float> data) override {
    return AllReduceTerms(step, data, {});
  }
  absl::Status AllReduceTerms(StepId step, std::span<float> data, const Terms& terms) override {
    RETURN_IF_ERROR(Reserve(data.size_bytes() * static_cast<std::size_t>(terms.count)));
    const std::span<float> staged = stage_.buffer.float_span().first(data.size());
    const Terms staged_terms{
        .count = terms.count, .stride = data.size(), .in_turns = terms.in_turns};
    RETURN_IF_ERROR(TermsToHost(data, terms, staged, staged_terms));
    RETURN_IF_ERROR(stage_.Await(*backend_, aborted_));
    RETURN_IF_ERROR(inner_->AllReduceTerms(step, staged, staged_terms));
    RETURN_IF_ERROR(ToDevice(staged, data));
    return stage_.Await(*backend_, aborted_);
  }
  absl::Status AllReduceSum(StepId step, std::span<double> data) override {
    return inner_->AllReduceSum(step, data);
  }
  absl::Status ReduceScatterSum(StepId step, Parts parts) override {
    return ReduceScatterTerms(step, parts, {});
  }
  absl::Status ReduceScatterTerms(StepId step, Parts parts, const Terms& terms) override {
    return ReduceParts(parts, terms, [&](Parts staged, const Terms& staged_terms) {
      return inner_->ReduceScatterTerms(step, staged, staged_terms);
    });
  }
  absl::Status ReduceScatterTree(StepId step, Parts parts) override {
    return ReduceParts(parts, {}, [&](Parts staged, const Terms&) {
      return inner_->ReduceScatterTree(step, staged);
    });
  }
  absl::Status AllGather(StepId step, Received parts) override {
    TAKT_CHECK(parts.size() == static_cast<std::size_t>(size()));
    ASSIGN_OR_RETURN(const std::vector<std::span<std::byte>> staged, StageParts(parts));
    const auto mine = static_cast<std::size_t>(index());
    if (!parts[mine].empty())
      RETURN_IF_ERROR(backend_->CopyToHost(parts[mine].data(), staged[mine]));
    RETURN_IF_ERROR(stage_.Await(*backend_, aborted_));
    RETURN_IF_ERROR(inner_->AllGather(step, staged));
    return ReceivedToDevice(staged, parts);
  }
  absl::Status SendTo(StepId step, int root, std::span<const std::byte> mine,
                      Received parts) override {
    if (index() == root) {
      TAKT_CHECK(parts.size() == static_cast<std::size_t>(size()));
      ASSIGN_OR_RETURN(const std::vector<std::span<std::byte>> staged, StageParts(parts));
      RETURN_IF_ERROR(inner_->SendTo(step, root, {}, staged));
      return ReceivedToDevice(staged, parts);
    }
    RETURN_IF_ERROR(Reserve(mine.size()));
    const std::span<std::byte> staged(stage_.buffer.data(), mine.size());
    if (!mine.empty()) RETURN_IF_ERROR(backend_->CopyToHost(mine.data(), staged));
    RETURN_IF_ERROR(stage_.Await(*backend_, aborted_));
    return inner_->SendTo(step, root, staged, {});
  }
  absl::Status Pass(StepId step, Sent sent, Received received) override {
    const auto ranks = static_cast<std::size_t>(size()), mine = static_cast<std::size_t>(index());
    TAKT_CHECK(sent.size() == ranks && received.size() == ranks);
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < ranks; ++i) {
      if (i != mine) bytes += sent[i].size() + received[i].size();
    }
    RETURN_IF_ERROR(Reserve(bytes));
    std::span<std::byte> left(stage_.buffer.data(), bytes);
    const auto take = [&left](std::size_t size) {
      const std::span<std::byte> taken = left.first(size);
      left = left.subspan(size);
      return taken;
    };
    std::vector<std::span<const std::byte>> out(ranks);
    std::vector<std::span<std::byte>> in(ranks);
    for (std::size_t i = 0; i < ranks; ++i) {
      if (i == mine) continue;
      in[i] = take(received[i].size());
      // Bytes that go to several ranks are copied once.
      std::size_t first = 0;
      while (first == mine || sent[first].data() != sent[i].data() ||
             sent[first].size() != sent[i].size())
        ++first;
      if (first < i) {
        out[i] = out[first];
      } else if (!sent[i].empty()) {
        const std::span<std::byte> staged = take(sent[i].size());
        RETURN_IF_ERROR(backend_->CopyToHost(sent[i].data(), staged));
        out[i] = staged;
      }
    }
    RETURN_IF_ERROR(stage_.Await(*backend_, aborted_));
    RETURN_IF_ERROR(inner_->Pass(step, out, in));
    return ReceivedToDevice(in, received);
  }

 private:
  // Makes room for the parts in the host's buffer and returns where they lie.
  absl::StatusOr<std::vector<std::span<std::byte>>> StageParts(Received parts) {
    std::size_t bytes = 0;
    for (const std::span<std::byte> part : parts) bytes += part.size();
    RETURN_IF_ERROR(Reserve(bytes));
    return PlacesOf(parts, std::span(stage_.buffer.data(), bytes));
  }
  // Copies what the other ranks sent.
  absl::Status ReceivedToDevice(const std::vector<std::span<std::byte>>& staged, Received parts) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const bool mine = static_cast<int>(i) == index();
      if (!mine && !staged[i].empty())
        RETURN_IF_ERROR(backend_->CopyFromHost(staged[i], parts[i].data()));
    }
    return stage_.Await(*backend_, aborted_);
  }

  // reduce(staged, terms): leaves the sums of the rank's part in the host's buffer.
  template <class Reduce>
  absl::Status ReduceParts(Parts parts, const Terms& terms, const Reduce& reduce) {
    std::size_t floats = 0;
    for (const std::span<float> part : parts) floats += part.size();
    const Terms staged_terms{.count = terms.count, .stride = floats, .in_turns = terms.in_turns};
    RETURN_IF_ERROR(Reserve(floats * sizeof(float) * static_cast<std::size_t>(terms.count)));
    const std::vector<std::span<float>> staged = PlacesOf(parts, stage_.buffer.float_span());
    for (std::size_t i = 0; i < parts.size(); ++i)
      RETURN_IF_ERROR(TermsToHost(parts[i], terms, staged[i], staged_terms));
    RETURN_IF_ERROR(stage_.Await(*backend_, aborted_));
    RETURN_IF_ERROR(reduce(staged, staged_terms));
    const auto mine = static_cast<std::size_t>(index());
    RETURN_IF_ERROR(ToDevice(staged[mine], parts[mine]));
    return stage_.Await(*backend_, aborted_);
  }

  // Makes the host's buffer this large. Precondition: nothing is in it.
  absl::Status Reserve(std::size_t bytes) {
    if (stage_.copied != nullptr && stage_.buffer.bytes() >= bytes) return absl::OkStatus();
    ASSIGN_OR_RETURN(stage_, MakeStage(*backend_, std::max<std::size_t>(bytes, 1)));
    return absl::OkStatus();
  }

  // Returns where the parts lie in `room`, one behind the other.
  template <class T>
  static std::vector<std::span<T>> PlacesOf(std::span<const std::span<T>> parts,
                                            std::span<T> room) {
    std::vector<std::span<T>> places;
    for (const std::span<T> part : parts) {
      places.push_back(room.first(part.size()));
      room = room.subspan(part.size());
    }
    return places;
  }
  absl::Status TermsToHost(std::span<float> device, const Terms& device_terms,
                           std::span<float> host, const Terms& host_terms) {
    for (int term = 0; term < device_terms.count; ++term) {
      RETURN_IF_ERROR(ToHost({device_terms.Of(device.data(), term), device.size()},
                             {host_terms.Of(host.data(), term), host.size()}));
    }
    return absl::OkStatus();
  }
  absl::Status ToHost(std::span<float> device, std::span<float> host) {
    if (device.empty()) return absl::OkStatus();
    return backend_->CopyToHost(std::as_bytes(device).data(), std::as_writable_bytes(host));
  }
  absl::Status ToDevice(std::span<float> host, std::span<float> device) {
    if (device.empty()) return absl::OkStatus();
    return backend_->CopyFromHost(std::as_bytes(host), std::as_writable_bytes(device).data());
  }

  const std::unique_ptr<Collective> inner_;
  const std::unique_ptr<MemoryBackend> backend_;
  const std::atomic<bool>& aborted_;
  Stage stage_;  // as large as the largest sum so far; it grows in the first step only
};

class StagedTransport final : public DeviceTransport {
 public:
  StagedTransport(Transport& inner, backend::BackendFactory& backends)
      : inner_(inner), backends_(backends) {}

  absl::StatusOr<std::unique_ptr<SendChannel>> OpenSend(Rank peer, const std::string& name,
                                                        std::size_t max_bytes) override {
    ASSIGN_OR_RETURN(std::unique_ptr<MemoryBackend> backend,
                     backends_.CreateMemory(StreamKind::kTransfer));
    ASSIGN_OR_RETURN(Stage stage, MakeStage(*backend, max_bytes));
    ASSIGN_OR_RETURN(std::unique_ptr<SendChannel> channel, inner_.OpenSend(peer, name, max_bytes));
    return std::make_unique<StagedSend>(std::move(channel), std::move(backend), std::move(stage),
                                        aborted_);
  }

  absl::StatusOr<std::unique_ptr<RecvChannel>> OpenRecv(Rank peer, const std::string& name,
                                                        std::size_t max_bytes) override {
    ASSIGN_OR_RETURN(std::unique_ptr<MemoryBackend> backend,
                     backends_.CreateMemory(StreamKind::kTransfer));
    std::array<Stage, 2> stages;
    for (Stage& stage : stages) {
      ASSIGN_OR_RETURN(stage, MakeStage(*backend, max_bytes));
    }
    ASSIGN_OR_RETURN(std::unique_ptr<RecvChannel> channel, inner_.OpenRecv(peer, name, max_bytes));
    return std::make_unique<StagedRecv>(std::move(channel), std::move(backend), std::move(stages),
                                        aborted_);
  }

  absl::StatusOr<std::unique_ptr<Collective>> OpenSums(const CollectiveOptions& group) override {
    ASSIGN_OR_RETURN(std::unique_ptr<Collective> sums, CreateCollective(&inner_, group));
    ASSIGN_OR_RETURN(std::unique_ptr<MemoryBackend> backend,
                     backends_.CreateMemory(StreamKind::kReduce));
    return std::make_unique<StagedCollective>(std::move(sums), std::move(backend), aborted_);
  }

  void Abort() override {
    aborted_ = true;
    inner_.Abort();
  }
  absl::Status status() const override { return inner_.status(); }

 private:
  Transport& inner_;
  backend::BackendFactory& backends_;
  std::atomic<bool> aborted_ = false;
};

}  // namespace

std::unique_ptr<DeviceTransport> StageTransport(Transport& inner,
                                                backend::BackendFactory& backends) {
  if (backends.memory_is_host()) return nullptr;
  return std::make_unique<StagedTransport>(inner, backends);
}

}  // namespace takt::transport
