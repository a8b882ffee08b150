// SPDX-License-Identifier: Apache-2.0
// The part of a layer that a checkpoint keeps. The views are of memory that another object owns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/id.h"
#include "common/model/model.h"

namespace takt::worker_checkpoint {

// One parameter of the layer that owns it. A rank has whole rows of it, from `first_row` on: all of
// them, or some. `weight` has these rows, or those of their elements that the rank keeps.
struct ParameterState {
  const model::Parameter* parameter = nullptr;
  // m, v: the moments that the optimizer has; the others are empty. last_update: empty unless
  // errors are fed back. All three belong to all elements of the rows, or to fewer: those of which
  // this rank has the optimizer's state.
  std::span<const float> weight, m, v, last_update;
  std::int64_t first_row = 0;
  // The elements of the rows to which the first weight and the first moments belong.
  std::size_t first_weight = 0, first_moment = 0;
  // A copy of the state has room for so many rows, of which first_row is the first; 0: for all rows
  // of the parameter.
  std::int64_t room_rows = 0;
};

// Gives pointers to the members `weight`, `m`, `v` and `last_update` of those that the parameter
// has, in the order in which a copy of the state keeps them.
// View: ParameterState or ParameterTarget.
template <class View>
auto PartsOf(const model::Parameter& parameter) {
  std::vector<decltype(&View::weight)> parts = {&View::weight};
  if (parameter.moments >= 1) parts.push_back(&View::m);
  if (parameter.moments >= 2) parts.push_back(&View::v);
  if (parameter.fed_back) parts.push_back(&View::last_update);
  return parts;
}

struct LayerState {
  LayerId layer;
  std::vector<ParameterState> parameters;  // the layer's own, in the model's order
};

// A parameter is loaded here. A moment that the optimizer does not have, or that is not wanted (of
// the copy of a tied weight), is empty.
struct ParameterTarget {
  const model::Parameter* parameter = nullptr;
  // The rows are those to load, from `first_row` on, or all pieces that the rank has where layers
  // are split (model::Split). The four are as ParameterState has them.
  std::span<float> weight, m, v, last_update;
  std::int64_t first_row = 0;
  std::size_t first_weight = 0, first_moment = 0;
};

// layer: the one that owns the parameters. Any of its parameters may be left out.
struct LayerTarget {
  LayerId layer;
  std::vector<ParameterTarget> parameters;
};

}  // namespace takt::worker_checkpoint
