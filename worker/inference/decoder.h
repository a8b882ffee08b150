// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/backend/backend.h"
#include "worker/inference/local_model.h"
#include "worker/inference/pass.h"
#include "worker/train/key_value_cache.h"

namespace takt::inference {

// Goes through one sequence, some tokens at a time, and keeps the keys and values of earlier
// tokens. So each token passes the layers once. One caller at a time.
class Decoder {
 public:
  // capacity: the most tokens that the sequence will have; 1 to config().positions. model: borrowed
  // for the decoder's life. Errors: kResourceExhausted.
  static absl::StatusOr<std::unique_ptr<Decoder>> Create(const LocalModel& model,
                                                         std::int64_t capacity);

  // Takes the next tokens. Returns the logits of the token after the last of them, which are valid
  // until the next call. Precondition: there is at least one, all are ids of the vocabulary, and
  // the sequence has at most `capacity` tokens.
  absl::StatusOr<std::span<const float>> Append(std::span<const std::int32_t> tokens);

  std::int64_t length() const { return cache_.past; }

 private:
  explicit Decoder(const LocalModel& model) : model_(model) {}
  absl::Status Allocate(std::int64_t capacity);
  // Takes tokens whose logits are not needed.
  absl::Status Skip(std::span<const std::int32_t> tokens);

  const LocalModel& model_;
  std::vector<float> rotary_table_;
  backend::Buffer memory_;  // of the cache
  train::KeyValueCache cache_;
  std::unique_ptr<Pass> last_;  // of one token, with the head
  std::vector<float> logits_;
};

}  // namespace takt::inference
