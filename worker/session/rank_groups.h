// SPDX-License-Identifier: Apache-2.0
// The groups over which one rank sums: the replicas of its stages, its chain of the pipeline, the
// two ends of a tied embedding, and the ranks that share its layers or experts. The ranks that
// share its sequences form a group that passes bytes, and so does the chain where the vocabulary is
// spread. mesh::RanksOf says who is in which.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mesh/mesh.h"
#include "common/model/model.h"
#include "common/program/program.h"
#include "worker/train/trainer.h"
#include "worker/transport/collective.h"
#include "worker/transport/transport.h"

namespace takt::session {

// Returns the ranks that hold the same part of `stage` as `rank`, in the order in which their
// gradients are summed: that of mesh::Group::kReplicas, and of each replica the primary copy first.
// Hence a bidirectional pipeline, whose two copies have half of the microbatches each, sums as
// twice as many replicas would. program: of `rank`, which holds the stage.
std::vector<Rank> HoldersOf(StageId stage, const mesh::Mesh& mesh, Rank rank,
                            const program::Program& program);

// Returns those of HoldersOf that have the same experts as `rank`, in the same order. expert_size:
// so many neighbouring replicas share them.
std::vector<Rank> ExpertHoldersOf(StageId stage, const mesh::Mesh& mesh, Rank rank,
                                  const program::Program& program, int expert_size);

// Returns the ranks that share the optimizer's state of the stages of `rank`, by
// layout::ShardPlace::index. They are the holders of each of these stages in another order.
// program: of `rank`.
std::vector<Rank> SharersOf(const mesh::Mesh& mesh, Rank rank, const program::Program& program);

class RankGroups {
 public:
  struct Options {
    Rank rank;
    mesh::Mesh mesh;
    const mesh::Partition* partition = nullptr;  // borrowed for the call of Connect
    const program::Program* program = nullptr;   // this rank's
    bool tied_embeddings = false;
    int expert_size = 1;  // so many neighbouring replicas share experts
    // Opens a group in device memory, for sums of gradients or for ranks that split layers or share
    // experts. Empty: these are in host memory.
    std::function<absl::StatusOr<std::unique_ptr<transport::Collective>>(
        const transport::CollectiveOptions&)>
        make_sums;
    std::int64_t generation = 0;
    // This is control::Assignment::sparse_meeting. A large group that only sums is then a chain.
    bool sparse_meeting = false;
    // This is control::Assignment::sharing_chains. If it and sparse_meeting are set, a large group
    // that shares the optimizer's state is a ring.
    bool sharing_chains = false;
    std::int64_t bucket_bytes = 0;  // as control::Assignment::bucket_bytes
  };
  // transport: borrowed for the groups' life.
  // Blocks: until all ranks of the groups do the same.
  static absl::StatusOr<RankGroups> Connect(transport::Transport& transport,
                                            const Options& options);

  // Fills in the groups of a trainer, which borrows them.
  void GiveTo(train::TrainerOptions& options) const;

  // Returns the group of each stage of this rank, and of its rows of a spread vocabulary, which
  // stand after the last stage. What no other rank holds has no entry.
  const std::map<StageId, transport::Collective*>& replicas() const { return replicas_; }
  // Returns the group of ExpertHoldersOf of each stage of this rank. What no other rank holds has
  // no entry, and where no ranks share experts there are none.
  const std::map<StageId, transport::Collective*>& expert_holders() const {
    return expert_holders_;
  }
  // Returns null if this rank is the whole pipeline.
  transport::Collective* pipeline() const { return pipeline_; }
  // Returns null if there are no tied embeddings on two ranks, or if this rank has neither end.
  transport::Collective* tied() const { return tied_; }
  // Returns the group in which the pipeline meets over its vocabulary. Null: it is not spread.
  transport::Collective* vocabulary() const { return vocabulary_; }
  // Returns the ranks that share this rank's layers, or its experts, where they meet inside passes.
  // No rank shares both. Null: it shares none.
  transport::Collective* tensor() const { return tensor_; }
  // Returns the ranks that share this rank's sequences, where they meet inside passes. Null: it
  // shares none.
  transport::Collective* context() const { return context_; }
  // Return groups of the ranks of tensor() and context(), for the B of pairs that run beside their
  // F. Null: there are no pairs in which these meet.
  transport::Collective* pair_tensor() const { return pair_tensor_; }
  transport::Collective* pair_context() const { return pair_context_; }
  // Returns a group of the ranks of tensor(), for the exchange of norm and loss.
  transport::Collective* norms() const { return norms_; }
  // Returns the group of SharersOf, for SendTo from host memory. Null: no ranks share.
  transport::Collective* sharers() const { return sharers_; }

 private:
  // Returns null for a group of less than two ranks. A group that already exists is used again.
  absl::StatusOr<transport::Collective*> Open(transport::Transport& transport,
                                              const Options& options, std::string_view kind,
                                              const std::vector<Rank>& ranks,
                                              transport::LargeGroup large);

  std::map<std::string, std::unique_ptr<transport::Collective>> groups_;  // by name
  std::map<StageId, transport::Collective*> replicas_, expert_holders_;
  transport::Collective* pipeline_ = nullptr;
  transport::Collective* tied_ = nullptr;
  transport::Collective* vocabulary_ = nullptr;
  transport::Collective* tensor_ = nullptr;
  transport::Collective* norms_ = nullptr;
  transport::Collective* context_ = nullptr;
  transport::Collective* pair_tensor_ = nullptr;
  transport::Collective* pair_context_ = nullptr;
  transport::Collective* sharers_ = nullptr;
};

}  // namespace takt::session
