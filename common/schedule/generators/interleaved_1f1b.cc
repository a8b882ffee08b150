// SPDX-License-Identifier: Apache-2.0
// Interleaved 1F1B, sec. 2.2 of the paper; orders of Megatron-LM and PyTorch. Takes groups of
// other lengths than P too.
//
// Bubble (P-1) * (F + B) of one chunk; min((V-1) * N + 2 * (P-1-r) + 1, V * M) in flight on rank
// r.
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/schedule/generators/generators.h"
#include "common/schedule/generators/group.h"
#include "common/schedule/generators/loop.h"

namespace takt::schedule {
namespace {

constexpr Family kFamily{
    .name = "interleaved-1f1b",
    .summary = "1f1b over several chunks per rank: a shorter fill, more messages",
    .reference = "Narayanan et al. 2021, arXiv:2104.04473",
    .bubble = "(P-1)(F+B)",
    .peak = "(V-1)N + 2(P-1-r) + 1",
    .num_chunks = 2,
    .uses_chunks = true,
    .uses_group = true};

absl::StatusOr<Schedule> Generate(const GenerateOptions& options) {
  const int ranks = options.num_ranks;
  const int chunks = *options.num_chunks;
  if (chunks < 2) {
    return InvalidField({.field = "chunks",
                         .value = absl::StrCat(chunks),
                         .rule = "interleaved-1f1b needs at least 2 chunks per rank",
                         .fix = "use chunks: 2 or more, or schedule 1f1b"});
  }
  ASSIGN_OR_RETURN(const int group, ChooseGroup(kFamily.name, options, ranks));
  return BuildLoop(kFamily.name, {.num_ranks = ranks,
                                  .num_microbatches = options.num_microbatches,
                                  .num_chunks = chunks,
                                  .group = group,
                                  .warmup = [=](int rank) {
                                    return (chunks - 1) * group + 2 * (ranks - 1 - rank);
                                  }});
}

}  // namespace

Generator InterleavedOneForwardOneBackward() { return {kFamily, &Generate}; }

}  // namespace takt::schedule
