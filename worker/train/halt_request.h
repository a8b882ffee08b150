// SPDX-License-Identifier: Apache-2.0
// How ranks tell each other, with the results of a step, that some of them were asked to halt.
#pragma once

#include <atomic>
#include <cmath>
#include <cstdint>

namespace takt::train {

// What a rank was asked for.
enum class HaltRequest : std::uint8_t {
  kNone = 0,
  kInMemory,  // to end, with its state in the memory of workers alone
  kSaving,    // to end, and to save what the job saves
};

// A request to end in memory has a weight above the number of ranks, and one that saves has weight
// 1. So a sum over ranks tells whether there are any, and whether one of them saves.
inline constexpr double kInMemoryWeight = 1 << 20;

// asked: null: nobody asks.
inline double WeightOf(const std::atomic<HaltRequest>* asked) {
  const HaltRequest request = asked == nullptr ? HaltRequest::kNone : asked->load();
  if (request == HaltRequest::kNone) return 0;
  return request == HaltRequest::kInMemory ? kInMemoryWeight : 1;
}

// Returns what follows from the sum of all weights. One rank that saves decides for all.
inline HaltRequest RequestOf(double sum) {
  if (!(sum > 0)) return HaltRequest::kNone;
  return std::fmod(sum, kInMemoryWeight) == 0 ? HaltRequest::kInMemory : HaltRequest::kSaving;
}

}  // namespace takt::train
