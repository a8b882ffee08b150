// SPDX-License-Identifier: Apache-2.0
// The grid of ranks with named axes, slowest first: pipeline, data, context, tensor. So ranks that
// split one layer have consecutive numbers:
// rank = ((pp_rank * dp_size + dp_rank) * cp_size + cp_rank) * tp_size + tp_rank.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/id.h"
#include "common/model/recompute.h"

namespace takt::mesh {

// Says where a rank is on each axis.
struct Coordinates {
  PpRank pp;
  DpRank dp;
  CpRank cp;
  TpRank tp;
  auto operator<=>(const Coordinates&) const = default;
};

inline constexpr std::int64_t kMostRanks = 1 << 20;

struct Mesh {
  int pp_size = 1;
  int dp_size = 1;
  int cp_size = 1;
  int tp_size = 1;

  int size() const { return pp_size * num_chains(); }
  // A chain has one rank of every pp rank, all of them at the same place on the other axes.
  // Activations and their gradients stay in their chain. Each pp rank has so many ranks.
  int num_chains() const { return dp_size * cp_size * tp_size; }
  // Each part of the model is on so many ranks, which add up its gradients (Group::kReplicas).
  int num_replicas() const { return dp_size * cp_size; }
  int ChainOf(Rank rank) const { return rank.value() % num_chains(); }

  Rank RankOf(PpRank pp, int chain) const { return Rank(pp.value() * num_chains() + chain); }
  Rank RankOf(const Coordinates& at) const {
    return RankOf(at.pp, (at.dp.value() * cp_size + at.cp.value()) * tp_size + at.tp.value());
  }
  // Returns the place of the rank among its replicas, in ascending order of ranks.
  int ReplicaOf(Rank rank) const { return ChainOf(rank) / tp_size; }
  // Returns the rank of pp rank `pp` in the chain of `rank`.
  Rank PeerOf(Rank rank, PpRank pp) const { return RankOf(pp, ChainOf(rank)); }

  PpRank PpRankOf(Rank rank) const { return PpRank(rank.value() / num_chains()); }
  DpRank DpRankOf(Rank rank) const { return DpRank(ChainOf(rank) / (cp_size * tp_size)); }
  CpRank CpRankOf(Rank rank) const { return CpRank(rank.value() / tp_size % cp_size); }
  TpRank TpRankOf(Rank rank) const { return TpRank(rank.value() % tp_size); }
  Coordinates At(Rank rank) const {
    return {PpRankOf(rank), DpRankOf(rank), CpRankOf(rank), TpRankOf(rank)};
  }

  // Returns whether every size is at least 1 and there are at most kMostRanks ranks.
  bool IsPossible() const;
  // Returns whether only the axes pipeline and data have more than one rank.
  bool HasTwoAxes() const { return cp_size == 1 && tp_size == 1; }
};

// The sets of ranks that meet. Each is the ranks that differ from one another on some axes alone.
enum class Group : std::uint8_t {
  kPipeline,    // on pipeline: a chain, which also adds up norms
  kVocabulary,  // on pipeline: a chain, where it meets over a vocabulary that is spread
  kData,        // on data: they have the same part of the model and read different sequences
  kContext,     // on context: they have parts of the same sequences
  kTensor,      // on tensor: they have parts of the same layers
  kReplicas,    // on data and context: they add up the gradients of the same parameters
};

// Returns the name of the group in rendezvous keys and errors: "pipeline".
std::string_view NameOf(Group group);

// Returns the ranks of the group to which `member` belongs, in ascending order.
std::vector<Rank> RanksOf(const Mesh& mesh, Group group, Rank member);

// Returns the ranks that share experts with `member`, in ascending order: those of so many
// neighbouring replicas on its pp rank. They are no axis (docs/adr/0013-experts-over-ranks.md).
// expert_size: divides dp_size.
std::vector<Rank> ExpertRanksOf(const Mesh& mesh, Rank member, int expert_size);

// Returns the axes besides pipeline and data that have more than one rank, to follow these in a
// text: " x context 2 x tensor 4".
std::string OtherAxes(const Mesh& mesh);

// Returns the sizes for errors and lists: "4 x 2" for pipeline and data, and OtherAxes:
// "4 x 2 x tensor 4".
std::string ToString(const Mesh& mesh);

// Returns where a rank is: "pp 1, dp 0", with "cp 1" and "tp 3" where those axes have more than one
// rank.
std::string PlaceName(const Mesh& mesh, Rank rank);

// Consecutive layers of the model's list that run as one unit: [first_layer, last_layer).
struct Stage {
  StageId id;
  PpRank pp_rank;
  LayerId first_layer, last_layer;
  model::Recompute recompute = model::Recompute::kNone;
};

// All stages in forward order.
using Partition = std::vector<Stage>;

}  // namespace takt::mesh
