// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/virtual_ranks.h"

#include <mutex>
#include <thread>
#include <utility>

#include "common/base/status.h"
#include "worker/transport/ipc/ipc_transport.h"
#include "worker/transport/staged/staged.h"

namespace takt::testing {

absl::StatusOr<std::unique_ptr<engine::Engine>> VirtualRank::MakeEngine(
    const program::Program& program, engine::Compute& compute, const std::string& channel_prefix) {
  const auto rank_of = [this](PpRank pp) { return mesh_.PeerOf(rank_, pp); };
  return engine::Engine::Create(
      program, compute,
      {.transport = &messages(), .rank_of = rank_of, .channel_prefix = channel_prefix});
}

absl::StatusOr<std::unique_ptr<VirtualRanks>> VirtualRanks::Create(const Options& options) {
  std::unique_ptr<VirtualRanks> all(new VirtualRanks());
  all->models_ = options.models;
  if (options.device != nullptr && !options.device->memory_is_host())
    all->shared_ = std::make_unique<SharedDevice>(*options.device);
  const mesh::Mesh mesh = options.plan->mesh;
  for (Rank id(0); id.value() < mesh.size(); ++id) {
    std::unique_ptr<VirtualRank> rank(new VirtualRank());
    rank->rank_ = id;
    rank->mesh_ = mesh;
    rank->program_ = &options.plan->programs[mesh.PpRankOf(id).value()];
    if (options.make_backends) rank->own_backends_ = options.make_backends();
    rank->backends_ = options.make_backends ? rank->own_backends_.get() : options.device;
    const transport::TransportOptions transport{
        .rank = id, .num_ranks = mesh.size(), .job = "virtual"};
    rank->host_ = all->hub_.Connect(transport);
    rank->device_ = all->shared_ != nullptr
                        ? all->shared_->Connect(*rank->host_, id)
                        : transport::StageTransport(*rank->host_, *rank->backends_);
    if (all->shared_ == nullptr && rank->backends_->peer_memory() != nullptr) {
      rank->device_ = transport::ipc::CreateIpcTransport(
          {.transport = transport}, *rank->host_, std::move(rank->device_), *rank->backends_);
    }
    all->ranks_.push_back(std::move(rank));
  }
  RETURN_IF_ERROR(all->ForAll([&](VirtualRank& rank) { return all->Prepare(options, rank); }));
  return all;
}

absl::Status VirtualRanks::Prepare(const Options& options, VirtualRank& rank) const {
  const plan::Plan& plan = *options.plan;
  // No rank shares both layers and experts.
  const int expert_index = rank.mesh_.DpRankOf(rank.rank_).value() % plan.model.experts.size;
  const auto index =
      static_cast<std::size_t>(rank.mesh_.TpRankOf(rank.rank_).value() + expert_index);
  const model::Model& model = models_.empty() ? plan.model : models_[index];
  session::RankGroups::Options groups{
      .rank = rank.rank_,
      .mesh = rank.mesh_,
      .partition = &plan.partition,
      .program = rank.program_,
      .tied_embeddings = !plan.model.layers.back().tied_parameters.empty(),
      .expert_size = model.experts.size,
      .sparse_meeting = true,
      .sharing_chains = true};
  if (rank.device_ != nullptr) {
    groups.make_sums = [&](const transport::CollectiveOptions& group) {
      return rank.device_->OpenSums(group);
    };
  }
  ASSIGN_OR_RETURN(rank.groups_, session::RankGroups::Connect(*rank.host_, groups));
  const bool validates = !plan.validation_programs.empty();
  const bool observed = rank.mesh_.DpRankOf(rank.rank_) == DpRank(0);
  train::TrainerOptions about{
      .job = options.job,
      .model = &model,
      .partition = &plan.partition,
      .program = rank.program_,
      .validation_program =
          validates ? &plan.validation_programs[rank.program_->pp_rank.value()] : nullptr,
      .mesh = rank.mesh_,
      .rank = rank.rank_,
      .vocabulary_ends = plan.vocabulary_ends,
      .backends = rank.backends_,
      .data_root = options.data_root,
      .restore = options.restore,
      .observer = observed ? options.observer : nullptr};
  rank.groups_.GiveTo(about);
  if (!options.pairs_beside) about.pair_tensor_group = about.pair_context_group = nullptr;
  ASSIGN_OR_RETURN(rank.trainer_, train::CreateTrainer(about));
  RETURN_IF_ERROR(rank.trainer_->Prepare());
  return rank.trainer_->Gather();
}

absl::Status VirtualRanks::ForAll(const std::function<absl::Status(VirtualRank&)>& body) {
  std::mutex mutex;
  absl::Status first;
  std::vector<std::jthread> threads;
  for (const auto& rank : ranks_) {
    threads.emplace_back([&, rank = rank.get()] {
      const absl::Status status = body(*rank);
      if (status.ok()) return;
      {
        const std::lock_guard lock(mutex);
        if (!first.ok()) return;  // what that brought about
        first = status;
      }
      for (const auto& other : ranks_) other->messages().Abort();
    });
  }
  threads.clear();  // joined
  return first;
}

}  // namespace takt::testing
