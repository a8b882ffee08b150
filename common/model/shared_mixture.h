// SPDX-License-Identifier: Apache-2.0
// Makes the layers of one of several ranks that share the experts of blocks, from those of a rank
// that has all experts (docs/adr/0013-experts-over-ranks.md). Letters: e ranks share the E experts
// of a block, and rank i has the E/e neighbouring ones from i E/e on. N rows of tokens, k experts
// of a token, C hidden, F width of an expert. R rows of all e ranks have room on a rank.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/model/model.h"

namespace takt::model {

// Before anything was measured, plans assume that the rank with the most rows has so many times the
// mean, and so takes so many times as long. Ranks that wait for one another wait for this one.
inline constexpr double kExpertImbalance = 1.3;

// Returns R: half as many rows again as a rank has if all have equally many. More rows than R go to
// memory that the rank allocates for as long as it needs it.
constexpr std::int64_t RoomForArrivals(std::int64_t rows, std::int64_t chosen) {
  return (3 * rows * chosen + 1) / 2;
}

// The last tensors of Layer::stash of such a block. Its kGate, kUp and kProduct are [R,F],
// and in f32.
struct ArrivalsStash {
  enum Tensor : std::uint8_t {
    // [e, E/e + 1] integers: ExpertRows::offsets of what came from each rank. There is room for
    // [e,E], which is no less.
    kOffsets,
    kInput,    // [R,C] the norm's output, as it came
    kWeights,  // [R] the router's, as they came
    kDOutput,  // [R,C] the gradients that came to I, for W
  };
  static constexpr std::size_t kNumTensors = 4;
};

// The last tensors of Layer::scratch of such a block. Its kDProduct is [R,F].
struct ArrivalsScratch {
  enum Tensor : std::uint8_t {
    kRows,      // [N*k,C] of the rank's own tokens, on their way to experts or back
    kPairs,     // [N*k] the router's weights, or their gradients, likewise
    kResults,   // [R,C] what the rank's experts make of rows
    kDWeights,  // [R] gradients of the weights that came
  };
  static constexpr std::size_t kNumTensors = 4;
};

// Holders of the same experts pass on a running sum of gradients in slices of so many floats, so
// that one adds a slice while the next one passes on another, and what came takes little memory.
inline constexpr std::int64_t kExpertSumFloats = std::int64_t{128} << 10;

// Returns what a rank takes for sums of gradients, beside its layers' tensors. 0: the model's ranks
// share no experts.
std::int64_t SharingBytes(const Model& model);

// Returns how many rows may come from one rank. 0: the model's ranks share no experts.
std::int64_t MostRowsOfSource(const Model& model);

// A rank has e gradients of each of its experts, one behind the other. Returns which of them is by
// the rows of rank `source`. That of the last rank is the first one, and gets the sum, because
// groups add terms that lie like this (transport::Collective::Terms).
constexpr int GradientOfSource(const ExpertShare& share, int source) {
  return (source + 1) % share.size;
}

// Leaves the rank `model.experts` its part of each mixture. It has all parameters of the model, of
// which those of other ranks' experts are `away`.
// Precondition: the share divides the experts, and layers are not split.
void ShareExperts(Model& model);

// Returns by how much longer the layer takes on the rank with the most rows. imbalance: these over
// the mean.
double SlowestShare(const Model& model, const Layer& layer, double imbalance);

}  // namespace takt::model
