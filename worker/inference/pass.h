// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "absl/status/statusor.h"
#include "common/layout/stage_layout.h"
#include "common/model/model.h"
#include "worker/backend/backend.h"
#include "worker/inference/local_model.h"
#include "worker/train/stage.h"

namespace takt::inference {

struct PassOptions {
  int rows = 1;          // tokens that go through the layers together, of one sequence
  bool has_head = true;  // without it nothing is known of the token that follows
  // This is train::LayerOptions::rotary_table, borrowed, for as many positions as tokens may have.
  const float* rotary_table = nullptr;
};

// The forward pass of a model: training's own layers, in one chain, with memory for so many tokens.
// One caller at a time, also together with other passes of the model.
class Pass {
 public:
  // local: borrowed for the pass's life. Errors: kResourceExhausted.
  static absl::StatusOr<std::unique_ptr<Pass>> Create(const LocalModel& local,
                                                      const PassOptions& options);

  // Takes the tokens, which must be ids of the vocabulary. view: tokens and, with a head, targets,
  // [rows] each; starts, if the tokens are of documents that are apart. loss_sum: the sum of the
  // losses of scored targets goes here, if there is a head.
  absl::Status Run(const train::TokenView& view, double* loss_sum);

  // Copies the logits of one row of the last Run, [vocab]. Precondition: there is a head.
  void CopyLogits(std::int64_t row, std::span<float> logits) const;

 private:
  explicit Pass(model::Model model) : model_(std::move(model)) {}

  const model::Model model_;  // with a context of `rows`
  layout::StageLayout layout_;
  backend::Buffer stash_, scratch_, output_;  // output_: without a head
  bool has_head_ = true;
  std::optional<train::Stage> stage_;  // borrows all of the above
};

}  // namespace takt::inference
