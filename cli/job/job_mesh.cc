// SPDX-License-Identifier: Apache-2.0
#include "cli/job/job_mesh.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/counted.h"

namespace takt::cli {

mesh::Mesh MeshOf(const v1::Job& job) {
  const v1::ParallelismSpec& asked = job.spec().parallelism();
  mesh::Mesh mesh{.dp_size = 1,
                  .cp_size = std::max(1, asked.context()),
                  .tp_size = std::max(1, asked.tensor())};
  for (const v1::StageAssignment& stage : job.stages())
    mesh.pp_size = std::max(mesh.pp_size, stage.pp_rank() + 1);
  mesh.dp_size = job.ranks_size() / mesh.size();
  return mesh;
}

std::string RanksText(const v1::Job& job) {
  const mesh::Mesh mesh = MeshOf(job);
  const std::string ranks = Counted(job.ranks_size(), "rank");
  return mesh.HasTwoAxes() || !mesh.IsPossible()
             ? ranks
             : absl::StrCat(ranks, " (", mesh::ToString(mesh), ")");
}

}  // namespace takt::cli
