// SPDX-License-Identifier: Apache-2.0
// Spreads the words of the head and of the embedding over the ranks of a pipeline
// (`vocabulary: spread`): which rank has which blocks of words, and where S and T stand in its row.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mesh/vocabulary_split.h"
#include "common/plan/candidate.h"
#include "common/schedule/schedule.h"

namespace takt::plan {

// Says which of both candidates may have.
struct VocabularyModes {
  bool last = true, spread = false;
};

// Returns what the job leaves open on pipelines of that size. `auto` compares both if there is more
// than one block of words. One rank has all words anyway.
VocabularyModes ModesOf(const CandidateInputs& inputs, int pp_size);

// Returns why `auto` does not spread words that it could spread; empty: it does, or there are too
// few words.
std::string_view WhyAutoKeepsLast(const CandidateInputs& inputs, int pp_size);

// Checks that the job may spread its words under this schedule. Errors: kInvalidArgument
// (FieldError "parallelism.vocabulary").
absl::Status CheckSpread(const CandidateInputs& inputs, const schedule::Schedule& schedule);

// Gives each block to the rank with the least work, beside the stages of this partition.
mesh::VocabularyEnds DealBlocks(const CandidateInputs& inputs, const mesh::Partition& partition);

// Adds S and T of every rank and microbatch to a schedule that has none. Of the depths that hide
// more or less of the meetings, it takes the one whose simulated step is shortest, and the smallest
// of those that are equal. A schedule that has S and T already, as one from a file may, stays.
absl::StatusOr<schedule::Schedule> WithVocabulary(const CandidateInputs& inputs,
                                                  const schedule::Schedule& schedule,
                                                  const mesh::Partition& partition,
                                                  const mesh::VocabularyEnds& vocabulary_ends);

// Takes S and T out of a schedule.
schedule::Schedule WithoutVocabulary(schedule::Schedule schedule);

}  // namespace takt::plan
