// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "common/program/lowering.h"
#include "common/schedule/testing/any_family.h"

namespace takt::program {

// Returns stages of one layer. Each stage recomputes or not, and its ranks meet in it or not, at
// random.
inline std::vector<StageShape> AnyStages(int num_stages) {
  std::vector<StageShape> stages;
  for (int s = 0; s < num_stages; ++s) {
    stages.push_back({.first_layer = LayerId(s),
                      .last_layer = LayerId(s + 1),
                      .recomputed_bytes = schedule::Uniform(0, 2)});
    if (schedule::Uniform(0, 3) > 0) continue;
    const Part gather = {PartKind::kGather, PartGroup::kTensor, 8};
    stages.back().layers.push_back({.forward = {gather, Part{}}, .input_grad = {Part{}, gather}});
  }
  return stages;
}

}  // namespace takt::program
