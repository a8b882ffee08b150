// SPDX-License-Identifier: Apache-2.0
// Chooses the step that a job resumes from by the copies that its workers hold in memory, and who
// sends which layers to whom. Where ranks have parts of layers, each part counts as a layer of its
// own, with the number PieceOf. Everything here is pure. Ranks tell each other offers and
// choices as text, through the rendezvous.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/id.h"

namespace takt::session {

// Returns the number of a part of a layer. The first parts have the layers' own numbers.
inline LayerId PieceOf(LayerId layer, int part, int num_layers) {
  return LayerId(part * num_layers + layer.value());
}

// What one rank offers and needs: which layers of which steps its worker holds, with their hashes,
// and which layers the rank needs to train.
struct CopyOffer {
  std::map<StepId, std::map<LayerId, std::string>> held;
  std::vector<LayerId> needs;
  std::string kernels;  // the hash of the kernel plan that the worker knows; empty: it knows none
  bool operator==(const CopyOffer&) const = default;
};

// "needs 0 1\nkernels 0123\n40 0:0123 1:89ab\n41 0:..."
std::string FormatOffer(const CopyOffer& offer);
absl::StatusOr<CopyOffer> ParseOffer(std::string_view text);

// `from` sends the layer to `to`.
struct CopyMove {
  Rank from, to;
  LayerId layer;
  bool operator==(const CopyMove&) const = default;
};

struct CopyChoice {
  StepId step;                  // 0: there is none
  std::vector<CopyMove> moves;  // by sender, receiver and layer
  // Tells rank 0 the kernel plan, or is rank 0; nullopt: no rank that holds the step knows one.
  std::optional<Rank> kernels;
  std::string reason;  // why no step, or no newer one, can be taken; empty: the newest is
  bool operator==(const CopyChoice&) const = default;
};

struct CopyLimits {
  StepId at_least;  // no older step is taken, because a newer checkpoint is in storage
  StepId at_most;
  bool needs_kernels = false;  // no step is taken without the kernel plan
};

// Takes the newest step within `limits` of which every layer that some rank needs is held by some
// worker, and all holders agree on its hash. A rank whose own worker holds a layer does not receive
// it; otherwise the holder that sends least sends it. offers: by rank.
CopyChoice ChooseCopies(std::span<const CopyOffer> offers, const CopyLimits& limits);

// "41 0>2:5 0>2:6 kernels:1"; without the reason.
std::string FormatChoice(const CopyChoice& choice);
// Errors: kInvalidArgument, also if a rank is not below num_ranks.
absl::StatusOr<CopyChoice> ParseChoice(std::string_view text, int num_ranks);

}  // namespace takt::session
