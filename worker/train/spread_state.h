// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/statusor.h"
#include "common/layout/rank_layout.h"
#include "worker/train/parameter_store.h"
#include "worker/train/spread_head.h"
#include "worker/train/spread_meetings.h"
#include "worker/train/trainer.h"

namespace takt::train {

// What one rank has of a vocabulary that is spread over all pp ranks. The instructions of both
// programs share it.
struct SpreadState {
  // Memory that holds nothing between two instructions.
  struct Scratch {
    std::byte* layers = nullptr;    // of the compute lane
    std::byte* meetings = nullptr;  // of the vocabulary lane
  };
  // All are borrowed for the state's life. layout: its `vocabulary` is set.
  // Errors: kInvalidArgument (the group of the pipeline is missing, or the rows are in the memory
  // of a device).
  static absl::StatusOr<std::unique_ptr<SpreadState>> Create(const TrainerOptions& options,
                                                             const layout::RankLayout& layout,
                                                             const ParameterStore& parameters,
                                                             const Scratch& scratch);

  // Returns buffer i of T's sum over the rank's blocks. partial_grads: the kPartialGrad slot.
  std::byte* SumOfBlocks(std::byte* partial_grads, int i) const {
    const int in_slot = layout.partial_grads;
    return i < in_slot ? partial_grads + i * layout.sum_bytes
                       : scratch.layers + (i - in_slot) * layout.sum_bytes;
  }
  // Returns the room of one tensor [N,C] in f32 in the scratch of meetings.
  std::span<float> MeetingScratch() const {
    return {reinterpret_cast<float*>(scratch.meetings), static_cast<std::size_t>(elements)};
  }

  const layout::VocabularyLayout& layout;
  const Scratch scratch;
  const bool is_root, is_first;  // the rank has the last stage; it has stage 0
  const std::int64_t elements;   // N * C
  // Whether the norm's output is in bf16, and whether its gradient is.
  const bool norm_in_bf16, sums_in_bf16;
  const SpreadHead head;
  // The rank's rows as the embedding uses them. Null: it has none.
  const ParameterRef* const table;
  // Where steps overlap, the vocabulary lane makes foreseen rows (ParameterStore::ForeseenRows)
  // with a backend of its own, while the compute lane computes. Elsewhere both are empty.
  std::optional<ParameterRef> foreseen_table;
  std::unique_ptr<backend::Backend> rows_backend;
  std::optional<SpreadMeetings> meetings;  // nullopt: only shapes matter
  // Whether Ts, or ROWS_GRADs, have left gradients to add to since the last OPT. The lanes of these
  // three use them, and the program's slots order them.
  bool head_has_gradients = false, table_has_gradients = false;

  std::size_t norm_bytes() const { return BytesOf(norm_in_bf16); }
  std::size_t sum_bytes() const { return BytesOf(sums_in_bf16); }

 private:
  std::size_t BytesOf(bool bf16) const {
    return static_cast<std::size_t>(elements) * (bf16 ? sizeof(backend::Bf16) : sizeof(float));
  }
};

}  // namespace takt::train
