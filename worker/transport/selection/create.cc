// SPDX-License-Identifier: Apache-2.0
#include "worker/transport/selection/create.h"

#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "worker/transport/abort_signal.h"
#include "worker/transport/gloo/gloo.h"
#include "worker/transport/handshake.h"
#include "worker/transport/ipc/ipc_transport.h"
#include "worker/transport/nccl/nccl_transport.h"
#include "worker/transport/shm/shm.h"
#include "worker/transport/staged/staged.h"
#include "worker/transport/tcp/tcp.h"

namespace takt::transport {

namespace {

class ChoosingTransport final : public Transport {
 public:
  ChoosingTransport(TransportOptions options, Rendezvous& rendezvous,
                    std::shared_ptr<AbortSignal> abort, std::unique_ptr<Transport> shm,
                    std::unique_ptr<Transport> tcp)
      : options_(std::move(options)),
        rendezvous_(rendezvous),
        abort_(std::move(abort)),
        shm_(std::move(shm)),
        tcp_(std::move(tcp)) {}

  absl::StatusOr<std::unique_ptr<SendChannel>> OpenSend(Rank peer, const std::string& name,
                                                        std::size_t max_bytes) override {
    ASSIGN_OR_RETURN(Transport* const chosen, Choose(peer));
    return chosen->OpenSend(peer, name, max_bytes);
  }
  absl::StatusOr<std::unique_ptr<RecvChannel>> OpenRecv(Rank peer, const std::string& name,
                                                        std::size_t max_bytes) override {
    ASSIGN_OR_RETURN(Transport* const chosen, Choose(peer));
    return chosen->OpenRecv(peer, name, max_bytes);
  }
  void Abort() override { abort_->Raise(); }

 private:
  struct Choice {
    std::mutex mutex;  // held while asking: others that want this peer wait for the same answer
    Transport* transport = nullptr;
  };

  absl::StatusOr<Transport*> Choose(Rank peer) {
    Choice* choice;
    {
      std::lock_guard lock(mutex_);
      choice = &choices_[peer];
    }
    std::lock_guard lock(choice->mutex);
    if (choice->transport == nullptr) {
      ASSIGN_OR_RETURN(const bool shares, SharesMemory(options_, rendezvous_, peer, *abort_));
      choice->transport = shares ? shm_.get() : tcp_.get();
      Log(LogLevel::kInfo, "transport chosen",
          {{"job", options_.job},
           {"rank", std::to_string(options_.rank.value())},
           {"peer", std::to_string(peer.value())},
           {"transport", shares ? "shm" : "tcp"}});
    }
    return choice->transport;
  }

  const TransportOptions options_;
  Rendezvous& rendezvous_;
  const std::shared_ptr<AbortSignal> abort_;
  const std::unique_ptr<Transport> shm_, tcp_;
  std::mutex mutex_;
  std::map<Rank, Choice> choices_;  // entries stay where they are
};

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> CreateTransport(TransportOptions options,
                                                           config::TransportKind kind,
                                                           Rendezvous& rendezvous) {
  auto abort = std::make_shared<AbortSignal>();
  std::unique_ptr<Transport> shm = CreateShmTransport(options, rendezvous, abort);
  if (kind == config::TransportKind::kShm) return shm;
  const auto create_tcp = options.plain_sockets ? &CreateTcpTransport : &CreateGlooTransport;
  ASSIGN_OR_RETURN(std::unique_ptr<Transport> tcp, create_tcp(options, rendezvous, abort));
  if (kind == config::TransportKind::kTcp) return tcp;
  return std::make_unique<ChoosingTransport>(std::move(options), rendezvous, std::move(abort),
                                             std::move(shm), std::move(tcp));
}

absl::StatusOr<std::unique_ptr<DeviceTransport>> CreateDeviceTransport(
    DeviceTransportOptions options, Rendezvous& rendezvous, Transport& host,
    backend::BackendFactory& backends) {
  using config::TransportKind;
  const bool nccl = options.kind == TransportKind::kNccl,
             ipc = options.kind == TransportKind::kCudaIpc;
  std::unique_ptr<DeviceTransport> staged = StageTransport(host, backends);
  if (staged == nullptr && (nccl || ipc)) {
    return InvalidField({.field = "parallelism.transport",
                         .value = nccl ? "nccl" : "cuda_ipc",
                         .rule = "carries what is in the memory of GPUs, and this job computes on "
                                 "cores",
                         .fix = "use auto, shm or tcp, or parallelism.device: cuda"});
  }
  const bool through_host =
      options.kind == TransportKind::kShm || options.kind == TransportKind::kTcp;
  if (staged == nullptr || through_host) return staged;
  const auto on_aborted = [on_stuck = options.on_stuck](const absl::Status& reason, bool stuck) {
    if (!stuck || !on_stuck) return;
    on_stuck(absl::StrCat("NCCL cannot be aborted after: ", std::string(reason.message())));
  };
  ASSIGN_OR_RETURN(auto chosen,
                   nccl::CreateNcclTransport(
                       {.transport = options.transport,
                        .library = options.nccl != nullptr ? *options.nccl : nccl::Library(),
                        .required = nccl,
                        .on_aborted = on_aborted},
                       rendezvous, host, std::move(staged), backends));
  if (!ipc) return chosen;
  return ipc::CreateIpcTransport(
      {.transport = std::move(options.transport), .on_stuck = std::move(options.on_stuck)}, host,
      std::move(chosen), backends);
}

}  // namespace takt::transport
