// SPDX-License-Identifier: Apache-2.0
#include "common/sim/together.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::sim {

using program::Program;

absl::Status CheckTogether(const std::vector<Program>& programs) {
  if (programs.empty()) return absl::InvalidArgumentError("there are no programs");
  for (std::size_t rank = 0; rank < programs.size(); ++rank) {
    const Program& program = programs[rank];
    RETURN_IF_ERROR(program::CheckProgram(program));
    if (program.pp_rank.value() != static_cast<int>(rank) ||
        program.pp_size != static_cast<int>(programs.size())) {
      return absl::InvalidArgumentError(absl::StrCat("program ", rank, " of ", programs.size(),
                                                     " is for pp rank ", program.pp_rank.value(),
                                                     " of ", program.pp_size));
    }
    if (program.num_stages != programs[0].num_stages ||
        program.num_microbatches != programs[0].num_microbatches) {
      return absl::InvalidArgumentError(absl::StrCat(
          "program of pp rank ", rank, " has another number of stages or microbatches"));
    }
  }
  return absl::OkStatus();
}

}  // namespace takt::sim
