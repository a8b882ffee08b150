// SPDX-License-Identifier: Apache-2.0
// This is interleaved 1F1B, sec. 2.2 of the paper, in the order of Megatron-LM and PyTorch. Groups
// may have another length than P.
//
// The bubble is (P-1) * (F + B) of one chunk, with min((V-1) * N + 2 * (P-1-r) + 1, V * M) chunks
// in flight on rank r.
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
    .idea =
        "A rank holds V short stages that are P apart instead of one long one. The pipeline fills "
        "in 1/V of the time, at the price of V times the messages and a longer warm-up to hold.",
    .sizes =
        "V >= 2, M >= P; groups of N >= P microbatches whose last one is full or has at least P",
    .care =
        "Its bubble is (P-1)/(VM+P-1). Texts that print (P-1)/(V(M+P-1)) divide the wrong thing: "
        "at P = 4, M = 8, V = 2 that would be 13.6 %, and the truth is 15.8 %. With P = 2 the next "
        "and the previous rank are the same one, and two streams of messages share a pair of "
        "ranks.",
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
  return BuildLoop(kFamily, options, {.group = group, .warmup = [=](int rank) {
                                        return (chunks - 1) * group + 2 * (ranks - 1 - rank);
                                      }});
}

}  // namespace

Generator InterleavedOneForwardOneBackward() { return {kFamily, &Generate}; }

}  // namespace takt::schedule
