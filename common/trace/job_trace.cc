// SPDX-License-Identifier: Apache-2.0
#include "common/trace/job_trace.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/program/part_lists.h"
#include "common/sim/together.h"

namespace takt::trace {
namespace {

absl::Status CheckStep(const JobTrace& trace, int rank, int index) {
  const StepTrace& step = trace.ranks[rank].steps[index];
  const auto bad = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("trace of job ", trace.job, ", rank ", rank,
                                                   ", step ", step.step.value(), ": ", what));
  };
  if (step.rank != Rank(rank)) return bad(absl::StrCat("is of rank ", step.rank.value()));
  if (step.step != trace.ranks[0].steps[index].step) return bad("rank 0 has another step here");
  if (index > 0 && step.step <= trace.ranks[rank].steps[index - 1].step) {
    return bad("steps are not in ascending order");
  }
  const program::Program& program = trace.ProgramOf(rank);
  if (!Fits(step, program)) {
    return bad(absl::StrCat("has ", step.prologue.size(), " + ", step.body.size(),
                            " instructions with ", step.meetings.size(), " meetings, its program ",
                            program.prologue.size(), " + ", program.body.size(), " with ",
                            NumMeetings(program)));
  }
  for (const std::vector<Span>* list : {&step.prologue, &step.body, &step.stalls, &step.meetings}) {
    for (const Span& span : *list) {
      if (span.end_nanos < span.start_nanos) return bad("something ends before it starts");
    }
  }
  return absl::OkStatus();
}

}  // namespace

bool Fits(const StepTrace& step, const program::Program& program) {
  return step.body.size() == program.body.size() && step.meetings.size() == NumMeetings(program) &&
         (step.prologue.empty() || step.prologue.size() == program.prologue.size());
}

absl::Status CheckJobTrace(const JobTrace& trace) {
  RETURN_IF_ERROR(sim::CheckTogether(trace.programs));
  RETURN_IF_ERROR(cost::CheckCosts(trace.predicted, trace.programs[0].num_stages));
  if (!trace.mesh.IsPossible() || trace.mesh.pp_size != static_cast<int>(trace.programs.size()) ||
      trace.num_ranks() != trace.mesh.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "trace of job ", trace.job, ": ", trace.ranks.size(), " ranks and ", trace.programs.size(),
        " programs for a mesh of ", mesh::ToString(trace.mesh)));
  }
  for (int rank = 0; rank < trace.num_ranks(); ++rank) {
    const std::size_t steps = trace.ranks[rank].steps.size();
    if (steps != trace.ranks[0].steps.size()) {
      return absl::InvalidArgumentError(absl::StrCat("trace of job ", trace.job, ": rank ", rank,
                                                     " has ", steps, " steps, rank 0 ",
                                                     trace.ranks[0].steps.size()));
    }
    for (int index = 0; index < trace.num_steps(); ++index) {
      RETURN_IF_ERROR(CheckStep(trace, rank, index));
    }
  }
  return absl::OkStatus();
}

}  // namespace takt::trace
