// SPDX-License-Identifier: Apache-2.0
#include "cli/schedule/family_notes.h"

namespace takt::cli {
namespace {

constexpr FamilyNote kNotes[] = {
    {.name = "naive",
     .idea = "A microbatch goes forward through all stages and back through all of them before the "
             "next "
             "one starts. One rank works at a time: this is what pipelining is measured against, "
             "and the "
             "order that every other synchronous family must match bit for bit.",
     .sizes = "any P and M, V = 1",
     .care = "Its bubble does not shrink with more microbatches: with P = 4 and M = 8 it is 3/4."},
    {.name = "gpipe",
     .idea =
         "All microbatches go forward, then all go back. While the first is on its way every other "
         "rank fills up behind it, so only the ramps at both ends are idle.",
     .sizes = "any P and M, V = 1",
     .care =
         "The paper lets the backwards descend, from the last microbatch to the first; here they "
         "ascend. The time is the same, the sums of gradients come in one order for all families."},
    {.name = "1f1b",
     .idea = "A rank starts its first backward as soon as it can, then alternates. The bubble is "
             "that of "
             "gpipe, but rank r holds P - r microbatches instead of M.",
     .sizes = "any P and M, V = 1; PyTorch wants M >= P",
     .care =
         "Exactly P microbatches are under way, so a message's time shows twice per microbatch in "
         "the "
         "steady phase: with I 1.1, W 0.7 and a message of 0.1 the bubble at P = 8, M = 32 grows "
         "from 18.0 % "
         "to 22.8 %. gpipe hides it."},
    {.name = "interleaved-1f1b",
     .idea = "A rank holds V short stages that are P apart instead of one long one. The pipeline "
             "fills in "
             "1/V of the time, at the price of V times the messages and a longer warm-up to hold.",
     .sizes =
         "V >= 2, M >= P; groups of N >= P microbatches whose last one is full or has at least P",
     .care = "Its bubble is (P-1)/(VM+P-1). Texts that print (P-1)/(V(M+P-1)) divide the wrong "
             "thing: at "
             "P = 4, M = 8, V = 2 that would be 13.6 %, and the truth is 15.8 %. With P = 2 the "
             "next and the "
             "previous rank are the same one, and two streams of messages share a pair of ranks."},
    {.name = "looped-bfs",
     .idea = "Breadth first: all microbatches pass a chunk before the next chunk begins. Messages "
             "have the "
             "whole length of a chunk's pass to arrive, and everything is held until the turn.",
     .sizes = "V >= 2, M >= P for the formula",
     .care = "Published code runs the backwards of a chunk from the last microbatch to the first; "
             "here they "
             "ascend, so that the sums of gradients agree with the other families bit for bit."},
    {.name = "zb-h1",
     .idea =
         "Backward is cut in two: I, which the neighbour waits for, and W, which nobody waits for. "
         "Each "
         "rank keeps 1f1b's order and its memory, and runs postponed W while the pipeline drains.",
     .sizes = "any P and M, V = 1; M >= P for the formula",
     .care =
         "Published figures use the span of one rank, not the makespan, and the quick start of the "
         "released code leaves some backwards whole: its idle is the same at equal costs and more "
         "at others."},
    {.name = "zb-h2",
     .idea = "Like zb-h1 with twice the warm-up: the ramp up is filled with forwards too, and the "
             "whole "
             "picture becomes a parallelogram. Between its own first and last action a rank is "
             "never idle "
             "if F, I and W are equal.",
     .sizes = "any P and M, V = 1; M >= 2P for the formula",
     .care = "Zero bubble is true by the span of a rank. With a barrier before the optimizer, the "
             "makespan "
             "counts, and P - 1 units of idle are left: no better than zb-h1 at equal costs."},
    {.name = "zb-1p",
     .idea = "The automatic scheduler of the zero-bubble paper: eight variants of a greedy rule, "
             "simulated "
             "with the given costs, the smallest span of a rank wins; each rank holds what 1f1b's "
             "first "
             "rank does.",
     .sizes = "any P and M, V = 1; costs matter",
     .care = "The paper keeps the variant with the smallest span, which needs a step without a "
             "barrier; this "
             "one keeps the smallest makespan."},
    {.name = "zb-2p",
     .idea = "zb-1p with twice the memory.",
     .sizes = "any P and M, V = 1; costs matter",
     .care =
         "With a barrier at the end of the step it gains nothing over zb-1p at equal costs. If a "
         "runtime "
         "frees part of what is held after I, the paper's memory model keeps up to M microbatches "
         "between F and W: count chunks from F to W."},
    {.name = "interleaved-zb",
     .idea = "interleaved-1f1b with the backward cut in two: the gradient returns after I instead "
             "of B, which "
             "shortens the warm-up, and W fills the drain.",
     .sizes = "as interleaved-1f1b",
     .care = "Messages grow with V while chunks shrink: where a message takes 10 % of a rank's F, "
             "V = 4 is "
             "slower than V = 2."},
    {.name = "gis",
     .idea = "Groups of N microbatches, and of every backward the input gradient first and sent "
             "off at once. "
             "The way back costs I per stage instead of B, so fewer forwards are needed to cover "
             "it: less "
             "bubble and less memory than interleaved-1f1b.",
     .sizes = "V >= 2; N from P/2 to P, whose last group is full or has at least P/2",
     .care = "Groups smaller than P save memory and cost idle time: P/2 is the useful minimum."},
    {.name = "zb-v",
     .idea = "The stages go down the ranks and come back up, so that a rank holds an early and a "
             "late one. "
             "What the early one holds long the late one holds short: all ranks need the same "
             "memory, that "
             "of 1f1b's first rank, and the turn at the bottom needs no message.",
     .sizes = "V = 2, any P and M; M >= 2P for the formula",
     .care = "The first and the last stage are both on rank 0: input, loss and labels are there, "
             "and tied "
             "embeddings need no exchange. With M = P it idles for 2(P-1), not P-1."},
    {.name = "v-half",
     .idea = "A repeating block on the V whose stages release their microbatches after half the "
             "time of zb-v: "
             "half the memory, and a steady phase without gaps as long as W + 2I >= 2F and W + 2F "
             ">= 2I.",
     .sizes = "V = 2, any P and M",
     .care =
         "Its bubble is about half of 1f1b's by the span of a rank; with a barrier it is larger."},
    {.name = "v-min",
     .idea = "The block on the V that releases a microbatch as early as dependencies allow: a "
             "third of 1f1b's "
             "memory.",
     .sizes = "V = 2, any P and M",
     .care =
         "It needs F = I = W. Otherwise every microbatch waits at every turn: at P = 8, M = 32 and "
         "costs "
         "1, 1.1, 0.7 with messages of 0.1 the bubble is 30 % instead of 12 %, worse than 1f1b; "
         "measurements of others agree."},
    {.name = "dualpipe",
     .idea =
         "Two copies of the weights, one running down the ranks and one up, each with half of the "
         "microbatches. In the middle a forward of one direction runs together with a backward of "
         "the "
         "other, so that the communication inside one hides behind the arithmetic of the other.",
     .sizes = "P and M even, M >= 2P; stages as many as ranks, two of them on each",
     .care =
         "Twice the weights, whose gradients are summed every step: the result equals that of two "
         "data-parallel copies, bit for bit, not that of one. A pair that takes as long as F + B "
         "waits "
         "for both inputs and gains nothing: at P = 8, M = 32 the bubble is 5.9 % against 3.0 % "
         "with "
         "the halves apart. It pays where O < F + B (`--cost O=...`)."},
    {.name = "dualpipe-v",
     .idea = "The phases of dualpipe on the V placement: both directions of a rank are its early "
             "and its late "
             "stage, so one copy of the weights is enough.",
     .sizes = "V = 2, M >= 2P",
     .care =
         "As with dualpipe, an overlapped pair has to be faster than its halves to be worth it."},
    {.name = "chimera",
     .idea = "Two copies of the weights and whole backwards: units of P microbatches, half from "
             "each end, fit "
             "into each other like two combs.",
     .sizes = "P even, P divides M; stages as many as ranks, two of them on each",
     .care =
         "Twice the weights, whose gradients are summed every step: the result equals that of two "
         "data-parallel copies, bit for bit. The generator published with the paper loses actions "
         "at "
         "M = 4P, P >= 8, and at P = 2; this one starts units at fixed times."},
    {.name = "pipedream",
     .idea = "1f1b that never drains: every backward is followed by an update, and the next "
             "microbatch uses "
             "the newest weights. Each microbatch keeps the weights of its forward for its "
             "backward, P - r "
             "versions on rank r.",
     .sizes = "M >= P, V = 1",
     .care =
         "Not the synchronous result: gradients on rank r are P - r - 1 updates old, and "
         "differently old "
         "on every rank. Losses are not comparable with those of the other families. No clipping, "
         "no replicas, no tied embeddings; a validation or a checkpoint empties the pipeline."},
    {.name = "pipedream-2bw",
     .idea = "1f1b that never drains, one update for every M microbatches, and two versions of the "
             "weights on "
             "every rank: w(t+1) = w(t) - step(gradient at w(t-1)).",
     .sizes = "M >= P, V = 1",
     .care =
         "Not the synchronous result: every gradient is exactly one update old. Losses are not "
         "comparable with those of the other families. No clipping; a validation or a checkpoint "
         "empties the pipeline."},
};

}  // namespace

const FamilyNote* FindFamilyNote(std::string_view family) {
  for (const FamilyNote& note : kNotes) {
    if (note.name == family) return &note;
  }
  return nullptr;
}

}  // namespace takt::cli
