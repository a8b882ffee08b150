// SPDX-License-Identifier: Apache-2.0
// For tests: parameters of which a rank has some rows.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "common/base/id.h"
#include "common/base/memory_kind.h"
#include "common/layout/packed_matrix.h"
#include "common/layout/tensor.h"
#include "common/model/model.h"

namespace takt::train::rows_testing {

// A model of one transformer block and three blocks of words, of which the last has 1808.
inline model::Model ModelOfThreeBlocks(const model::Precisions& precisions = {}) {
  return model::BuildModel({.layers = 1,
                            .hidden = 4,
                            .heads = 1,
                            .kv_heads = 1,
                            .inner = 16,
                            .context = 3,
                            .positions = 3,
                            .vocab = 10000},
                           /*microbatch=*/2, precisions)
      .value();
}

// The same runs of rows of the table by words for `layers`, which use it, in ascending order. The
// first of them has the weight; where products are in bf16, the others have its packed copies.
inline layout::Section LayOutRows(const model::Model& model, std::int64_t first_row,
                                  std::int64_t rows, std::initializer_list<LayerId> layers) {
  const model::Parameter& table = model.layers.front().parameters.front();
  const std::int64_t columns = table.shape[1];
  layout::Section section{.name = "rows"};
  const auto add = [&](layout::Role role, LayerId layer, MemoryKind kind, std::int64_t bytes) {
    section.AddAlone(kind, {.role = role,
                            .layer = layer,
                            .parameter = &table,
                            .first_row = first_row,
                            .rows = rows,
                            .shard = {.first = 0, .count = rows * columns},
                            .bytes = bytes});
  };
  for (const LayerId layer : layers) {
    add(layout::Role::kGradient, layer, MemoryKind::kGradients, 4 * rows * columns);
    if (layer == *layers.begin()) {
      add(layout::Role::kWeight, layer, MemoryKind::kWeights, 4 * rows * columns);
      add(layout::Role::kFirstMoment, layer, MemoryKind::kOptimizer, 4 * rows * columns);
      add(layout::Role::kSecondMoment, layer, MemoryKind::kOptimizer, 4 * rows * columns);
    } else if (model.precisions.products == model::Precision::kBf16) {
      add(layout::Role::kPackedWeight, layer, MemoryKind::kWeights,
          2 * layout::PackedElements(rows, columns));
      add(layout::Role::kPackedTransposedWeight, layer, MemoryKind::kWeights,
          2 * layout::PackedElements(columns, rows));
    }
  }
  return section;
}

}  // namespace takt::train::rows_testing
