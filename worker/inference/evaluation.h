// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "absl/status/statusor.h"
#include "common/config/job_spec.h"
#include "common/data/corpus.h"
#include "worker/inference/local_model.h"

namespace takt::inference {

// Says whether tokens see those of other documents in their window.
struct EvaluatedDocuments {
  // kUnstated: as config::Documents says, but rows that say where documents begin are separated.
  config::Documents mode = config::Documents::kUnstated;
  std::optional<int> end;  // the token that ends documents; nullopt: the model's own end_token
};

struct EvaluationOptions {
  int context = 0;               // tokens of a window; at most the model's positions
  std::int64_t max_windows = 0;  // the first so many of the corpus; 0: all
  EvaluatedDocuments documents = {};
  // It is called after each window.
  std::function<void(std::int64_t done, std::int64_t windows)> on_window;
};

struct Evaluation {
  double loss = 0;          // nats, the mean over scored tokens
  std::int64_t tokens = 0;  // scored
  std::int64_t windows = 0;
};

// Goes through the windows of a corpus in their order and scores every target that is not masked,
// as a job's validation does. Errors: kInvalidArgument (a FieldError of --context, --data or
// --document-end: the windows are not those of the model, ids are not in its vocabulary, nothing
// says where documents end that are to be separate, rows contradict themselves about documents, or
// no token is scored), kResourceExhausted.
absl::StatusOr<Evaluation> Evaluate(const LocalModel& model, const data::Corpus& corpus,
                                    const EvaluationOptions& options);

}  // namespace takt::inference
