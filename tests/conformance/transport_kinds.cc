// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/transport_kinds.h"

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
  RendezvousGroup(config::TransportKind kind, bool sparse) : kind_(kind), sparse_(sparse) {}
  absl::StatusOr<std::unique_ptr<transport::Transport>> Connect(
      const transport::TransportOptions& options) override {
    transport::TransportOptions own = options;
    own.sparse_meeting = sparse_;
    return transport::CreateTransport(own, kind_, rendezvous_);
  }

 private:
  const config::TransportKind kind_;
  const bool sparse_;
  testing::MapRendezvous rendezvous_;
};

}  // namespace

config::TransportKind KindOf(const std::string& kind) {
  if (kind == "shm") return config::TransportKind::kShm;
  if (kind == "gloo" || kind == "sparse") return config::TransportKind::kGloo;
  return config::TransportKind::kAuto;
}

std::unique_ptr<TransportGroup> MakeGroup(const std::string& kind) {
  if (kind == "inproc") return std::make_unique<InprocGroup>();
  if (kind == "nccl") return MakeNcclGroup();
  return std::make_unique<RendezvousGroup>(KindOf(kind), kind == "sparse");
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
