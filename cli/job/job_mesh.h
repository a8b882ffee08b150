// SPDX-License-Identifier: Apache-2.0
// Says how the ranks of a job are arranged, by what the coordinator tells of the job.
#pragma once

#include <string>

#include "common/mesh/mesh.h"
#include "takt/v1/job.pb.h"

namespace takt::cli {

// Returns the mesh of a job that holds its ranks. Of a job that holds none it returns one without
// replicas, which is impossible.
mesh::Mesh MeshOf(const v1::Job& job);

// Returns "8 ranks", and where there are more axes than pipeline and data the sizes as well:
// "8 ranks (2 x 1 x tensor 4)".
std::string RanksText(const v1::Job& job);

}  // namespace takt::cli
