// SPDX-License-Identifier: Apache-2.0
#include "common/mesh/mesh.h"

#include "absl/strings/str_cat.h"

namespace takt::mesh {
namespace {

// Says on which axes the ranks of a group differ.
struct Axes {
  bool pipeline = false, data = false, context = false, tensor = false;
};

Axes AxesOf(Group group) {
  switch (group) {
    case Group::kPipeline:
    case Group::kVocabulary:
      return {.pipeline = true};
    case Group::kData:
      return {.data = true};
    case Group::kContext:
      return {.context = true};
    case Group::kTensor:
      return {.tensor = true};
    case Group::kReplicas:
      return {.data = true, .context = true};
  }
  return {};
}

// The places on one axis that a group has: all of them, or the one of its member.
struct Run {
  int first, last;
};

Run RunOf(bool all, int size, int member) { return all ? Run{0, size} : Run{member, member + 1}; }

}  // namespace

bool Mesh::IsPossible() const {
  std::int64_t ranks = 1;
  for (const int size : {pp_size, dp_size, cp_size, tp_size}) {
    if (size < 1) return false;
    ranks *= size;
    if (ranks > kMostRanks) return false;
  }
  return true;
}

std::string_view NameOf(Group group) {
  switch (group) {
    case Group::kPipeline:
      return "pipeline";
    case Group::kVocabulary:
      return "vocabulary";
    case Group::kData:
      return "data";
    case Group::kContext:
      return "context";
    case Group::kTensor:
      return "tensor";
    case Group::kReplicas:
      return "replicas";
  }
  return "";
}

std::vector<Rank> RanksOf(const Mesh& mesh, Group group, Rank member) {
  const Axes axes = AxesOf(group);
  const Coordinates at = mesh.At(member);
  const Run pps = RunOf(axes.pipeline, mesh.pp_size, at.pp.value());
  const Run dps = RunOf(axes.data, mesh.dp_size, at.dp.value());
  const Run cps = RunOf(axes.context, mesh.cp_size, at.cp.value());
  const Run tps = RunOf(axes.tensor, mesh.tp_size, at.tp.value());
  std::vector<Rank> ranks;
  for (int pp = pps.first; pp < pps.last; ++pp) {
    for (int dp = dps.first; dp < dps.last; ++dp) {
      for (int cp = cps.first; cp < cps.last; ++cp) {
        for (int tp = tps.first; tp < tps.last; ++tp)
          ranks.push_back(mesh.RankOf({PpRank(pp), DpRank(dp), CpRank(cp), TpRank(tp)}));
      }
    }
  }
  return ranks;
}

std::vector<Rank> ExpertRanksOf(const Mesh& mesh, Rank member, int expert_size) {
  std::vector<Rank> ranks = RanksOf(mesh, Group::kData, member);
  const auto group_of = [&](Rank rank) { return mesh.DpRankOf(rank).value() / expert_size; };
  std::erase_if(ranks, [&](Rank rank) { return group_of(rank) != group_of(member); });
  return ranks;
}

std::string OtherAxes(const Mesh& mesh) {
  std::string text;
  if (mesh.cp_size != 1) absl::StrAppend(&text, " x context ", mesh.cp_size);
  if (mesh.tp_size != 1) absl::StrAppend(&text, " x tensor ", mesh.tp_size);
  return text;
}

std::string ToString(const Mesh& mesh) {
  return absl::StrCat(mesh.pp_size, " x ", mesh.dp_size, OtherAxes(mesh));
}

std::string PlaceName(const Mesh& mesh, Rank rank) {
  const Coordinates at = mesh.At(rank);
  std::string text = absl::StrCat("pp ", at.pp.value(), ", dp ", at.dp.value());
  if (mesh.cp_size > 1) absl::StrAppend(&text, ", cp ", at.cp.value());
  if (mesh.tp_size > 1) absl::StrAppend(&text, ", tp ", at.tp.value());
  return text;
}

}  // namespace takt::mesh
