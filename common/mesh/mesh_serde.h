// SPDX-License-Identifier: Apache-2.0
// Reads and writes the sizes of a mesh in messages. Every message that has them has the fields
// pp_size, dp_size, cp_size and tp_size.
#pragma once

#include "common/mesh/mesh.h"

namespace takt::mesh {

// Reads the sizes and checks nothing (Mesh::IsPossible). Programs that knew only two axes left the
// other fields out, and so does SetMesh where an axis has one rank.
template <class Proto>
Mesh MeshOf(const Proto& proto) {
  const auto size = [](int value) { return value == 0 ? 1 : value; };
  return {.pp_size = proto.pp_size(),
          .dp_size = proto.dp_size(),
          .cp_size = size(proto.cp_size()),
          .tp_size = size(proto.tp_size())};
}

template <class Proto>
void SetMesh(const Mesh& mesh, Proto& proto) {
  proto.set_pp_size(mesh.pp_size);
  proto.set_dp_size(mesh.dp_size);
  if (mesh.cp_size != 1) proto.set_cp_size(mesh.cp_size);
  if (mesh.tp_size != 1) proto.set_tp_size(mesh.tp_size);
}

}  // namespace takt::mesh
