// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "common/base/status.h"
#include "common/model/head_slices.h"
#include "common/model/model.h"
#include "worker/backend/backend.h"
#include "worker/train/linear.h"
#include "worker/train/stash_view.h"

namespace takt::train {

// The products of the head with one block of words. They go slice by slice over the rows that they
// are given (common/model/head_slices.h), which are those of a microbatch or of one slice.
class HeadProduct {
 public:
  // matrix: the table's rows that this rank has, of which `words` are the block; borrowed. stride:
  // of logits.
  HeadProduct(const model::Model& model, const ParameterRef& matrix, const Linear::Run& words,
              std::int64_t stride)
      : rows_(model.rows()),
        slice_(model.head_slice_rows()),
        columns_(model.config.hidden),
        stride_(stride),
        product_(rows_, matrix, words, stride) {}

  // Computes logits [rows,words] of norm [rows,C].
  absl::Status Forward(backend::Backend& backend, std::int64_t rows, const backend::Operand& norm,
                       const backend::Output& logits) const {
    for (const auto& [first, count] : model::RowSlices(rows, slice_)) {
      RETURN_IF_ERROR(product_.ForRows(count).Forward(backend, From(norm, first * columns_),
                                                      nullptr, From(logits, first * stride_)));
    }
    return absl::OkStatus();
  }

  // Computes the gradient of the norm's output, d_norm [rows,C], from that of logits.
  absl::Status InputGrad(backend::Backend& backend, std::int64_t rows,
                         const backend::Operand& d_logits, const backend::Output& d_norm) const {
    for (const auto& [first, count] : model::RowSlices(rows, slice_)) {
      RETURN_IF_ERROR(product_.ForRows(count).InputGrad(backend, From(d_logits, first * stride_),
                                                        From(d_norm, first * columns_)));
    }
    return absl::OkStatus();
  }

  // Adds to the gradient of the matrix, or overwrites it with the first slice.
  absl::Status WeightGrad(backend::Backend& backend, std::int64_t rows,
                          const backend::Operand& norm, const backend::Operand& d_logits,
                          bool accumulate) const {
    for (const auto& [first, count] : model::RowSlices(rows, slice_)) {
      const backend::Operand x = From(norm, first * columns_);
      const backend::Operand dy = From(d_logits, first * stride_);
      RETURN_IF_ERROR(
          product_.ForRows(count).WeightGrad(backend, {&x, 1}, {&dy, 1}, accumulate || first > 0));
    }
    return absl::OkStatus();
  }

  // The same of whole microbatches. Several of them are as few products as Linear makes.
  absl::Status WeightGrad(backend::Backend& backend, std::span<const backend::Operand> norm,
                          std::span<const backend::Operand> d_logits, bool accumulate) const {
    if (norm.size() == 1)
      return WeightGrad(backend, rows_, norm.front(), d_logits.front(), accumulate);
    return product_.WeightGrad(backend, norm, d_logits, accumulate);
  }

 private:
  const std::int64_t rows_, slice_, columns_, stride_;
  const Linear product_;
};

}  // namespace takt::train
