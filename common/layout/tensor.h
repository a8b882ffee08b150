// SPDX-License-Identifier: Apache-2.0
// The rows of a layout: one for each allocation that a rank makes and one for each tensor in it.
//
// A row says what a tensor is (its identity) and where it lies (its place). New axes fit into the
// identity, as a run of a parameter's rows does. A slice of a slot's tensor would be a
// `Slice{index, count}` beside `slot`. Code that resolves a place needs no change for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "common/base/id.h"
#include "common/base/memory_kind.h"
#include "common/layout/shard.h"
#include "common/model/model.h"
#include "common/program/program.h"

namespace takt::layout {

// Names what a tensor is.
enum class Role : std::uint8_t {
  kGradient,  // of one use of a parameter
  kWeight,
  // In bf16, in the order in which F multiplies by it; or as it is stored
  // (Parameter::kept_rounded).
  kPackedWeight,
  kPackedTransposedWeight,  // in bf16, in the order in which I multiplies by it
  kFirstMoment,
  kSecondMoment,
  kRotaryTable,
  kLayerScratch,  // what a pass of one layer, or T, needs while it runs
  kSlot,          // of a program
  // The GPU backend takes these for itself.
  kProductWorkspace,
  kRoundedForInputGrad,   // gradients in f32, as products of I read them
  kRoundedForWeightGrad,  // the same, as products of W read them
  kScoreGradients,        // gradients of attention's scores
  kSnapshot,              // what a checkpoint is written from
  kProcess,
  kMeetingScratch,   // what a meeting of a spread vocabulary needs while it runs
  kCopies,           // of the state, from which a lost rank is rebuilt
  kWeightShard,      // of a weight of which the rank has the whole only at times, or only packed
  kPairScratch,      // scratch of the B of a pair, while its F uses kLayerScratch
  kSharing,          // what a rank that shares experts needs beside its tensors
  kLeafGradients,    // a layer's, of an earlier one of the leaves that its replica has
  kGatheredWeights,  // whole in f32, between their gathering and their packing
  kLastUpdate,       // of weights, without what was fed back
  kRowNumbers,       // 0, 1, 2, ...: for rows that come to shared experts
};

inline constexpr std::size_t kNumRoles = 24;

std::string_view Name(Role role);

// One piece of memory that is asked for at once.
struct Allocation {
  MemoryKind kind = MemoryKind::kProcess;
  std::int64_t bytes = 0;
};

// A room among `count` like ones that share an allocation tensor by tensor: the first tensor of
// every room, then the second tensor of every room. So the tensors of neighbouring rooms lie in one
// piece. A room alone in its allocation holds its tensors as they are laid out.
struct Interleave {
  std::int64_t count = 1, index = 0;

  // Returns the offset in the allocation of the tensor that lies at `offset` of a room by itself
  // and has `room` bytes up to the next tensor.
  std::int64_t At(std::int64_t offset, std::int64_t room) const {
    return offset * count + index * room;
  }
  bool operator==(const Interleave&) const = default;
};

struct Tensor {
  Role role = Role::kProcess;
  StageId stage{-1};
  LayerId layer{-1};
  const model::Parameter* parameter = nullptr;  // borrowed from the model
  std::int64_t first_row = 0, rows = 0;         // of the parameter; 0 rows: the whole of it
  // Gradients, moments and shards of weights have the elements, counted from the first one here, of
  // which the rank has the optimizer's state.
  FloatRun shard;
  int version = 0;  // of weights: which of the places it is; or program::kForeseen
  SlotId slot{-1};
  program::SlotKind slot_kind = program::SlotKind::kTokens;
  std::string_view part;  // a tensor of a layer's stash; empty: everything in the slot

  int allocation = -1;  // index in the section
  std::int64_t offset = 0, bytes = 0;
  Interleave interleave;  // of slots: `offset` is that of all rooms together
};

// The allocations that one owner makes, in its order, and the tensors in them.
struct Section {
  std::string_view name;
  std::vector<Allocation> allocations;
  std::vector<Tensor> tensors;

  // Adds an allocation and returns its index.
  int Allocate(MemoryKind kind, std::int64_t bytes) {
    allocations.push_back({kind, bytes});
    return static_cast<int>(allocations.size()) - 1;
  }
  // Adds a tensor with an allocation of its own.
  void AddAlone(MemoryKind kind, Tensor tensor) {
    tensor.allocation = Allocate(kind, tensor.bytes);
    tensors.push_back(tensor);
  }
};

}  // namespace takt::layout
