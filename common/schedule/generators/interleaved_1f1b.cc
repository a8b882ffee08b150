// SPDX-License-Identifier: Apache-2.0
// Bubble (P-1) * (F + B) of one chunk; (V-1) * N + 2 * (P-1-r) + 1 chunks in flight on rank r.
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/schedule/generators/generators.h"
#include "common/schedule/generators/loop.h"

namespace takt::schedule {
namespace {

constexpr Family kFamily{
    .name = "interleaved-1f1b",
    .summary = "1f1b over several chunks per rank: a shorter fill, more messages",
    .reference = "Narayanan et al. 2021, arXiv:2104.04473",
    .uses_chunks = true,
    .uses_group = true};

// The last group is either full or long enough to keep every rank busy; else the order stalls.
bool IsLegalGroup(int group, const GenerateOptions& options) {
  const int rest = options.num_microbatches % group;
  return group >= options.num_ranks && (rest == 0 || rest >= options.num_ranks);
}

absl::StatusOr<int> ChooseGroup(const GenerateOptions& options) {
  if (options.group.has_value()) {
    if (*options.group <= options.num_microbatches && IsLegalGroup(*options.group, options)) {
      return *options.group;
    }
    return InvalidField(
        {.field = "group",
         .value = absl::StrCat(*options.group),
         .rule =
             absl::StrCat("must be from ranks (", options.num_ranks, ") to microbatches (",
                          options.num_microbatches,
                          ") and leave a last group that is full or has at least as many as ranks"),
         .fix = "leave it out to take the smallest that fits"});
  }
  int group = options.num_ranks;
  while (!IsLegalGroup(group, options)) ++group;  // ends: one group of all microbatches is legal
  return group;
}

absl::StatusOr<Schedule> Generate(const GenerateOptions& options) {
  const int ranks = options.num_ranks;
  const int chunks = *options.num_chunks;
  if (chunks < 2) {
    return InvalidField({.field = "chunks",
                         .value = absl::StrCat(chunks),
                         .rule = "interleaved-1f1b needs at least 2 chunks per rank",
                         .fix = "use chunks: 2 or more, or schedule 1f1b"});
  }
  if (options.num_microbatches < ranks) {
    return InvalidField(
        {.field = "microbatches",
         .value = absl::StrCat(options.num_microbatches),
         .rule = absl::StrCat("interleaved-1f1b needs at least as many as ranks (", ranks, ")"),
         .fix = "use more or smaller microbatches, fewer ranks, or schedule 1f1b"});
  }
  ASSIGN_OR_RETURN(const int group, ChooseGroup(options));
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
