// SPDX-License-Identifier: Apache-2.0
// Reads from the measured steps of a job what its layers, messages and updates took.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/mesh/mesh.h"
#include "common/mesh/vocabulary_split.h"
#include "common/model/model.h"
#include "common/profile/profile.h"
#include "common/trace/job_trace.h"

namespace takt::profile {

// Says where a rank of a traced job ran.
struct RankPlace {
  Conditions conditions;
  std::string host;
};

// Adds what a trace does not say of its job. The struct borrows.
struct TracedJob {
  const model::Model& model;
  const mesh::Partition& partition;
  const std::vector<RankPlace>& places;  // by rank of the mesh
  mesh::VocabularyEnds vocabulary_ends = {};
  int leaves = 1;  // of each replica; sums of several do not tell what one takes
};

// Adds what the trace's steps say, with this weight beside what is known. Each value is the median
// over steps of a step's mean. A stage of layers of several shapes is divided between them by what
// is known, or by their work. If the words are spread, what an embedding and a head leave on their
// stages takes so little that the blocks beside them get it. For pairs whose halves run side by
// side it learns their time divided by that of their two passes alone. Emulated layers are left
// out. Errors: kInvalidArgument: as MakeTimeline.
absl::Status Learn(const trace::JobTrace& trace, const TracedJob& job, double weight,
                   Profile& profile);

}  // namespace takt::profile
