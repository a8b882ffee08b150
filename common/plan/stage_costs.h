// SPDX-License-Identifier: Apache-2.0
// Says how long the stages of a plan take: as measured where there is a profile, else by their
// FLOPs at a rate.
#pragma once

#include <cstdint>
#include <vector>

#include "common/cost/costs.h"
#include "common/mesh/mesh.h"
#include "common/mesh/vocabulary_split.h"
#include "common/plan/candidate.h"

namespace takt::plan {

// Returns the seconds of F, I and W of each layer together, on a pipeline of so many ranks, as the
// stage that computes most again would compute it. If inputs.spread, layers with words take
// nothing.
std::vector<double> LayerSeconds(const CandidateInputs& inputs, int pp_size);

// Returns what the stages, their messages, sums and updates take. vocabulary_ends: if the words are
// spread; then S and T take the time of the words, and embedding and head take none.
cost::Costs CostsOf(const CandidateInputs& inputs, const mesh::Partition& partition,
                    const mesh::VocabularyEnds& vocabulary_ends = {});

// Returns the costs for readers that know no parts of instructions: what F, I, W and B compute,
// with the meetings inside. costs: of CostsOf.
cost::Costs WithMeetings(const CandidateInputs& inputs, const mesh::Partition& partition,
                         cost::Costs costs);

// Returns how many ranks meet inside the passes of layers: those that split layers, or those that
// share experts.
int SharersOfLayers(const model::Model& model);

// Returns whether the ranks of such a group find room on one host, as far as hosts are known.
bool TensorGroupsFitHosts(const CandidateInputs& inputs);

// Returns what the meetings of such a group cost, on one host or between hosts: as measured, else
// as so many messages.
cost::GroupCost TensorGroupCost(const CandidateInputs& inputs, bool same_host);

// Returns what the meetings of ranks that share sequences cost, as far as hosts are known.
cost::GroupCost ContextGroupCost(const CandidateInputs& inputs);

// Returns the size of buckets (common/base/bucket_bytes.h) at which latency is a twentieth of a
// message's time, by the measured messages. Returns 0, the default size, if there is nothing to sum
// or if no messages of very different sizes were measured.
std::int64_t BucketBytes(const CandidateInputs& inputs, int pp_size);

// Returns for how long a checkpoint pauses training, if the fullest rank copies so many bytes.
double SnapshotSeconds(const CandidateInputs& inputs, int pp_size, std::int64_t bytes);

// Adds where the costs come from to those that are known. Emulated jobs say what their layers take,
// so there is nothing to add.
void AddOrigins(const CandidateInputs& inputs, const mesh::Partition& partition,
                const mesh::VocabularyEnds& vocabulary_ends, Origins& origins);

}  // namespace takt::plan
