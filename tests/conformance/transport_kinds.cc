// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/transport_kinds.h"

#include "common/config/job_spec.h"
#include "tests/testing/inproc_hub.h"
#include "tests/testing/map_rendezvous.h"
#include "worker/transport/selection/create.h"

namespace takt::conformance {

namespace {

class InprocGroup final : public TransportGroup {
 public:
  absl::StatusOr<std::unique_ptr<transport::Transport>> Connect(
      const transport::TransportOptions& options) override {
    return hub_.Connect(options);
  }

 private:
  testing::InprocHub hub_;
};

class RendezvousGroup final : public TransportGroup {
 public:
  explicit RendezvousGroup(std::string kind) : kind_(std::move(kind)) {}
  absl::StatusOr<std::unique_ptr<transport::Transport>> Connect(
      const transport::TransportOptions& options) override {
    return MakeTransport(kind_, options, rendezvous_);
  }

 private:
  const std::string kind_;
  testing::MapRendezvous rendezvous_;
};

config::TransportKind KindOf(const std::string& kind) {
  if (kind == "shm") return config::TransportKind::kShm;
  if (kind == "tcp" || kind == "gloo" || kind == "sparse") return config::TransportKind::kTcp;
  return config::TransportKind::kAuto;
}

}  // namespace

absl::StatusOr<std::unique_ptr<transport::Transport>> MakeTransport(
    const std::string& kind, const transport::TransportOptions& options,
    transport::Rendezvous& rendezvous) {
  if (kind == "ipc") return MakeIpcTransport(options, rendezvous);
  transport::TransportOptions own = options;
  own.plain_sockets = kind == "tcp" || kind == "auto";
  own.sparse_meeting = kind == "sparse";
  return transport::CreateTransport(own, KindOf(kind), rendezvous);
}

std::unique_ptr<TransportGroup> MakeGroup(const std::string& kind) {
  if (kind == "inproc") return std::make_unique<InprocGroup>();
  if (kind == "nccl") return MakeNcclGroup();
  return std::make_unique<RendezvousGroup>(kind);
}

transport::TransportOptions LoopbackOptions(int rank) {
  return {.rank = Rank(rank),
          .num_ranks = 2,
          .job = "conformance",
          .generation = 3,
          .secret = "0123456789abcdef0123456789abcdef",
          .data_address = "127.0.0.1",
          .connect_timeout = absl::Seconds(20),
          .operation_timeout = absl::Seconds(60)};
}

}  // namespace takt::conformance
