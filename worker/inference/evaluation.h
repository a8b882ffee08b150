// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "common/data/corpus.h"
#include "worker/inference/local_model.h"

namespace takt::inference {

struct EvaluationOptions {
  int context = 0;               // tokens of a window; at most the model's positions
  std::int64_t max_windows = 0;  // the first so many of the corpus; 0: all
  // It is called after each window.
  std::function<void(std::int64_t done, std::int64_t windows)> on_window;
};

struct Evaluation {
  double loss = 0;          // nats, the mean over scored tokens
  std::int64_t tokens = 0;  // scored
  std::int64_t windows = 0;
};

// Goes through the windows of a corpus in their order and scores every target that is not masked.
// Where rows say where documents begin, no token sees another document. Errors: kInvalidArgument (a
// FieldError of --context or --data: the windows are not those of the model, ids are not in its
// vocabulary, rows contradict themselves about documents, or no token is scored),
// kResourceExhausted.
absl::StatusOr<Evaluation> Evaluate(const LocalModel& model, const data::Corpus& corpus,
                                    const EvaluationOptions& options);

}  // namespace takt::inference
