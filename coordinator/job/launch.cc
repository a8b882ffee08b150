// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/launch.h"

#include <utility>

namespace takt::job {
namespace {

control::Assignment AssignmentOf(const Launch& launch, Rank rank) {
  const plan::Plan& plan = launch.plan;
  const std::size_t pp_rank = plan.mesh.PpRankOf(rank).value();
  control::Assignment assignment{.key = launch.key,
                                 .rank = rank,
                                 .job = launch.job,
                                 .mesh = plan.mesh,
                                 .partition = plan.partition,
                                 .program = plan.programs[pp_rank],
                                 .threads = launch.threads[rank.value()],
                                 .transport = launch.job.parallelism.transport,
                                 .device = launch.device,
                                 .secret = launch.secret,
                                 .predicted_step_seconds = plan.predicted_step_seconds,
                                 .predicted_bubble_fraction = plan.predicted_bubble_fraction,
                                 .resume = launch.resume,
                                 .resume_at_most = launch.resume_at_most,
                                 .job_id = launch.job_id,
                                 .saved = launch.saved,
                                 .owner = launch.owner,
                                 .epoch = launch.epoch};
  assignment.copies = launch.copies;
  if (rank == Rank(0)) assignment.other_jobs = launch.other_jobs;  // no other rank reads them
  assignment.sparse_meeting = launch.sparse_meeting;
  assignment.plain_sockets = launch.plain_sockets;
  assignment.sharing_chains = launch.sharing_chains;
  if (!launch.sparse_meeting) assignment.ranks = launch.ranks;
  assignment.vocabulary_ends = plan.vocabulary_ends;
  assignment.bucket_bytes = plan.bucket_bytes;
  if (pp_rank < plan.validation_programs.size()) {
    assignment.validation_program = plan.validation_programs[pp_rank];
  }
  return assignment;
}

}  // namespace

control::Prepare PrepareOf(std::shared_ptr<const Launch> launch, Rank rank) {
  return {.key = launch->key, .rank = rank, .assignment = [launch = std::move(launch), rank] {
            return AssignmentOf(*launch, rank);
          }};
}

}  // namespace takt::job
