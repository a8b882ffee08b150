// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/id.h"
#include "common/config/job_spec.h"
#include "common/control/job_key.h"
#include "common/mesh/mesh.h"
#include "common/mesh/vocabulary_split.h"
#include "common/program/program.h"

namespace takt::control {

// A rank of the mesh, bound to one process life of a worker.
struct BoundRank {
  Rank rank;
  std::string worker, incarnation;
  std::string data_address;  // where the worker's data plane listens
};

inline constexpr std::size_t kSecretBytes = 32;

// The copies of the state that the ranks of a generation keep in memory.
struct MemoryCopies {
  std::int64_t every_steps = 0;  // from one copy to the next; 0: none are kept
  // Rank r sends its copies to rank r + shift, and keeps those of rank r - shift, modulo the number
  // of ranks. 0: none are sent, because every layer is held by a replica too.
  int shift = 0;
  // The newest step that the job may resume from by copies of an earlier generation; 0: it must
  // not. It may be set even if this generation keeps none.
  StepId at_most;
  // Without copies the job could only start over, because it saves no files and has trained.
  bool required = false;
  bool operator==(const MemoryCopies&) const = default;
};

// Tells a worker what to run for one rank (takt.v1.Assignment).
struct Assignment {
  JobKey key;
  Rank rank;
  config::JobSpec job;
  mesh::Mesh mesh;
  mesh::Partition partition;
  program::Program program;  // of this rank's pp rank
  std::optional<program::Program> validation_program;
  std::vector<BoundRank> ranks;  // all ranks of the mesh; empty with sparse_meeting
  int threads = 0;               // 0: the worker chooses
  config::TransportKind transport = config::TransportKind::kAuto;
  config::DeviceKind device = config::DeviceKind::kAuto;  // kAuto: CPU cores
  std::string secret;  // kSecretBytes random bytes that the ranks of this generation share
  double predicted_step_seconds = 0;
  double predicted_bubble_fraction = 0;
  // The checkpoint from which training resumes: "auto" (the newest that loads), "none", or a step.
  std::string resume = "none";
  StepId resume_at_most;  // no checkpoint above this step is taken; 0: any may be
  std::string job_id;     // tells the job from others of the same name; empty: not known
  // The ids of the coordinator's other jobs that have checkpoints and have not ended. The directory
  // of one of them must not be used.
  std::vector<std::string> other_jobs;
  // The job has a checkpoint of this step. A rank that sees neither it nor a newer one must not
  // train. 0: it has none that the coordinator knows of.
  StepId saved;
  std::string owner;       // the identity that submitted the job; empty: none, or not known
  std::int64_t epoch = 0;  // of the coordinator that began the generation; 0: it has none
  mesh::VocabularyEnds vocabulary_ends = {};  // empty: the vocabulary is not spread
  MemoryCopies copies;
  // All workers of the job speak kSparseProtocolVersion: see takt.v1.Binding.
  bool sparse_meeting = false;
  // The same for kPlainSocketsProtocolVersion.
  bool plain_sockets = false;
  // The same for kSharingChainsProtocolVersion.
  bool sharing_chains = false;
  // The size of buckets (common/base/bucket_bytes.h); 0: the default.
  std::int64_t bucket_bytes = 0;
};

}  // namespace takt::control
