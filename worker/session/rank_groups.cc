// SPDX-License-Identifier: Apache-2.0
#include "worker/session/rank_groups.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/program/split_pairs.h"
#include "worker/transport/channel_collective.h"

namespace takt::session {
namespace {

using transport::LargeGroup;

// Replicas that share the optimizer's state gather weights, which a chain does not.
LargeGroup ReplicasIfLarge(const RankGroups::Options& options) {
  if (!program::ShardsOptimizer(*options.program)) return LargeGroup::kChain;
  return options.sharing_chains ? LargeGroup::kRing : LargeGroup::kDirect;
}

// Returns the ranks of the first and the last stage, or nothing if one rank has both or this rank
// has neither.
std::vector<Rank> TiedRanks(const RankGroups::Options& options) {
  const std::set<StageId> held = program::HeldStages(*options.program);
  const bool first = held.contains(options.partition->front().id);
  const bool last = held.contains(options.partition->back().id);
  if (first == last) return {};
  return {options.mesh.PeerOf(options.rank, options.partition->front().pp_rank),
          options.mesh.PeerOf(options.rank, options.partition->back().pp_rank)};
}

// Returns the ranks with the copies of the stages on these pp ranks, replica by replica.
std::vector<Rank> OfEachReplica(const mesh::Mesh& mesh, Rank rank,
                                const std::vector<PpRank>& copies) {
  std::vector<Rank> ranks;
  for (const Rank replica : mesh::RanksOf(mesh, mesh::Group::kReplicas, rank)) {
    for (const PpRank pp : copies) ranks.push_back(mesh.PeerOf(replica, pp));
  }
  return ranks;
}

std::vector<PpRank> CopiesOf(const program::Program& program) {
  std::vector<PpRank> copies = {program.pp_rank};
  if (program.mirror.value() >= 0) copies.push_back(program.mirror);
  return copies;
}

}  // namespace

std::vector<Rank> HoldersOf(StageId stage, const mesh::Mesh& mesh, Rank rank,
                            const program::Program& program) {
  std::vector<PpRank> copies = CopiesOf(program);
  if (!program::IsPrimary(program, stage)) std::ranges::reverse(copies);
  return OfEachReplica(mesh, rank, copies);
}

std::vector<Rank> ExpertHoldersOf(StageId stage, const mesh::Mesh& mesh, Rank rank,
                                  const program::Program& program, int expert_size) {
  std::vector<Rank> holders = HoldersOf(stage, mesh, rank, program);
  const auto index_of = [&](Rank each) { return mesh.DpRankOf(each).value() % expert_size; };
  std::erase_if(holders, [&](Rank each) { return index_of(each) != index_of(rank); });
  return holders;
}

std::vector<Rank> SharersOf(const mesh::Mesh& mesh, Rank rank, const program::Program& program) {
  std::vector<PpRank> copies = CopiesOf(program);
  std::ranges::sort(copies);
  return OfEachReplica(mesh, rank, copies);
}

absl::StatusOr<RankGroups> RankGroups::Connect(transport::Transport& transport,
                                               const Options& options) {
  RankGroups groups;
  // The stages are in ascending order, so that ranks that share several groups connect them in one
  // order.
  const bool spreads = program::SpreadsVocabulary(*options.program);
  std::set<StageId> stages = program::HeldStages(*options.program);
  if (spreads) stages.insert(StageId(options.program->num_stages));
  for (const StageId stage : stages) {
    ASSIGN_OR_RETURN(transport::Collective* const replicas,
                     groups.Open(transport, options, mesh::NameOf(mesh::Group::kReplicas),
                                 HoldersOf(stage, options.mesh, options.rank, *options.program),
                                 ReplicasIfLarge(options)));
    if (replicas != nullptr) groups.replicas_[stage] = replicas;
    if (options.expert_size == 1) continue;
    ASSIGN_OR_RETURN(transport::Collective* const holders,
                     groups.Open(transport, options, "expert-holders",
                                 ExpertHoldersOf(stage, options.mesh, options.rank,
                                                 *options.program, options.expert_size),
                                 LargeGroup::kDirect));
    if (holders != nullptr) groups.expert_holders_[stage] = holders;
  }
  // These are the options of groups that sum no gradients. Of these, only the ranks that split
  // layers or share experts meet in device memory.
  Options inside = options;
  inside.bucket_bytes = 0;
  Options host = inside;
  host.make_sums = nullptr;
  const auto open = [&](mesh::Group group, LargeGroup large) {
    return groups.Open(transport, host, mesh::NameOf(group),
                       mesh::RanksOf(options.mesh, group, options.rank), large);
  };
  ASSIGN_OR_RETURN(groups.pipeline_, open(mesh::Group::kPipeline, LargeGroup::kChain));
  const bool experts = options.expert_size > 1;
  const std::vector<Rank> sharing =
      experts ? mesh::ExpertRanksOf(options.mesh, options.rank, options.expert_size)
              : mesh::RanksOf(options.mesh, mesh::Group::kTensor, options.rank);
  const std::string_view kind = experts ? "experts" : mesh::NameOf(mesh::Group::kTensor);
  ASSIGN_OR_RETURN(groups.tensor_,
                   groups.Open(transport, inside, kind, sharing, LargeGroup::kDirect));
  ASSIGN_OR_RETURN(groups.context_, open(mesh::Group::kContext, LargeGroup::kDirect));
  if (program::PairsMeet(*options.program)) {
    ASSIGN_OR_RETURN(groups.pair_tensor_,
                     groups.Open(transport, host, absl::StrCat("pair-", std::string(kind)), sharing,
                                 LargeGroup::kDirect));
    ASSIGN_OR_RETURN(groups.pair_context_,
                     groups.Open(transport, host, "pair-context",
                                 mesh::RanksOf(options.mesh, mesh::Group::kContext, options.rank),
                                 LargeGroup::kDirect));
  }
  ASSIGN_OR_RETURN(groups.norms_,
                   groups.Open(transport, host, "norms", sharing, LargeGroup::kDirect));
  if (program::ShardsOptimizer(*options.program)) {
    ASSIGN_OR_RETURN(
        groups.sharers_,
        groups.Open(transport, host, "sharers",
                    SharersOf(options.mesh, options.rank, *options.program),
                    options.sharing_chains ? LargeGroup::kChain : LargeGroup::kDirect));
  }
  if (spreads) {
    ASSIGN_OR_RETURN(groups.vocabulary_, open(mesh::Group::kVocabulary, LargeGroup::kDirect));
  } else if (options.tied_embeddings) {
    ASSIGN_OR_RETURN(groups.tied_, groups.Open(transport, options, "tied", TiedRanks(options),
                                               LargeGroup::kChain));
  }
  return groups;
}

void RankGroups::GiveTo(train::TrainerOptions& options) const {
  options.replicas = replicas_;
  options.expert_holders = expert_holders_;
  options.pp_group = pipeline_;
  options.tied_group = tied_;
  options.vocabulary_group = vocabulary_;
  options.tensor_group = tensor_;
  options.norm_group = norms_;
  options.context_group = context_;
  options.pair_tensor_group = pair_tensor_;
  options.pair_context_group = pair_context_;
}

absl::StatusOr<transport::Collective*> RankGroups::Open(transport::Transport& transport,
                                                        const Options& options,
                                                        std::string_view kind,
                                                        const std::vector<Rank>& ranks,
                                                        LargeGroup large) {
  if (ranks.size() < 2) return nullptr;
  // Groups of one kind that share ranks begin with different ranks.
  const std::string name = absl::StrCat(std::string(kind), "-", ranks.front().value());
  std::unique_ptr<transport::Collective>& group = groups_[name];
  if (group != nullptr) return group.get();
  const auto self = std::ranges::find(ranks, options.rank);
  if (self == ranks.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", options.rank.value(), " is not of the group ", name, " that its program needs"));
  }
  transport::CollectiveOptions about{
      .name = name,
      .ranks = ranks,
      .index = static_cast<int>(self - ranks.begin()),
      .generation = options.generation,
      .large_group = options.sparse_meeting ? large : LargeGroup::kDirect};
  if (options.bucket_bytes > 0) about.slice_bytes = static_cast<std::size_t>(options.bucket_bytes);
  auto created =
      options.make_sums ? options.make_sums(about) : transport::CreateCollective(&transport, about);
  if (!created.ok()) {
    return Annotate(created.status(), absl::StrCat("connecting the group ", name));
  }
  group = *std::move(created);
  return group.get();
}

}  // namespace takt::session
