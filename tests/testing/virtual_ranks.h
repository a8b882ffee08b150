// SPDX-License-Identifier: Apache-2.0
// The ranks of a plan as threads of this process: real trainers and engines over the in-process
// transport.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/config/job_spec.h"
#include "common/plan/plan.h"
#include "tests/testing/inproc_hub.h"
#include "tests/testing/shared_device.h"
#include "worker/backend/backend.h"
#include "worker/engine/engine.h"
#include "worker/session/rank_groups.h"
#include "worker/train/trainer.h"

namespace takt::testing {

// Thread: its rank's, inside VirtualRanks::ForAll.
class VirtualRank {
 public:
  Rank rank() const { return rank_; }
  const program::Program& program() const { return *program_; }
  train::Trainer& trainer() { return *trainer_; }

  // compute: borrowed; usually the trainer. channel_prefix: tells engines of one rank apart.
  // Blocks: until the other ranks do the same.
  absl::StatusOr<std::unique_ptr<engine::Engine>> MakeEngine(const program::Program& program,
                                                             engine::Compute& compute,
                                                             const std::string& channel_prefix);

 private:
  friend class VirtualRanks;
  VirtualRank() = default;
  transport::Transport& messages() { return device_ != nullptr ? *device_ : *host_; }

  Rank rank_;
  mesh::Mesh mesh_;
  const program::Program* program_ = nullptr;
  backend::BackendFactory* backends_ = nullptr;
  // Each borrows from those above it.
  std::unique_ptr<backend::BackendFactory> own_backends_;  // null: all ranks share a device
  std::unique_ptr<transport::Transport> host_;
  std::unique_ptr<transport::DeviceTransport> device_;  // null: its memory is the host's
  session::RankGroups groups_;
  std::unique_ptr<train::Trainer> trainer_;
};

class VirtualRanks {
 public:
  struct Options {
    const config::JobSpec* job = nullptr;  // borrowed, as the plan
    const plan::Plan* plan = nullptr;
    // By tensor rank, or by the rank's number among those that share experts. Empty: all ranks have
    // the plan's model.
    std::vector<model::Model> models;
    std::string data_root = "/";
    // Makes what each rank computes on. Null: all of them share `device`. Devices with peer_memory
    // copy messages from each other.
    std::function<std::unique_ptr<backend::BackendFactory>()> make_backends;
    // Messages and sums stay in its memory, unless that is the host's.
    backend::BackendFactory* device = nullptr;
    const train::TensorObserver* observer = nullptr;  // of data-parallel rank 0
    // See TrainerOptions::restore. Ranks call it at the same time.
    std::function<absl::StatusOr<bool>(train::ParameterStore&)> restore;
    // False: the halves of pairs run one after the other, even where ranks meet inside them.
    bool pairs_beside = true;
  };
  // Connects them and creates the trainers.
  static absl::StatusOr<std::unique_ptr<VirtualRanks>> Create(const Options& options);

  // Calls `body` for each rank, on a thread of its own. When one fails, the transports of all are
  // aborted; its error is returned.
  absl::Status ForAll(const std::function<absl::Status(VirtualRank&)>& body);

 private:
  VirtualRanks() = default;
  absl::Status Prepare(const Options& options, VirtualRank& rank) const;

  std::vector<model::Model> models_;
  InprocHub hub_;
  std::unique_ptr<SharedDevice> shared_;  // null: ranks have devices, or are the host
  std::vector<std::unique_ptr<VirtualRank>> ranks_;
};

}  // namespace takt::testing
