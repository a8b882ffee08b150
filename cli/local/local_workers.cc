// SPDX-License-Identifier: Apache-2.0
#include "cli/local/local_workers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "cli/client/local_address.h"
#include "cli/local/local_cluster.h"
#include "cli/local/local_state.h"
#include "common/base/status.h"

namespace takt::cli {
namespace {

constexpr int kMostWorkers = 64, kMostWorkersPerCore = 8;

absl::Status UseCluster(const Context& context, const LocalState& state, int num_workers,
                        const std::function<absl::Status(Client&)>& use) {
  ASSIGN_OR_RETURN(const auto cluster,
                   LocalCluster::Start(state, {.program_directory = context.program_directory,
                                               .num_workers = num_workers,
                                               .kernel_plans = KernelPlanDirectory(context)}));
  RETURN_IF_ERROR(cluster->WaitForWorkers());
  return use(cluster->client());
}

}  // namespace

absl::Status WithLocalWorkers(const Context& context, int num_workers,
                              const std::function<absl::Status(Client&)>& use) {
  const int most = std::min(kMostWorkers, kMostWorkersPerCore * NumCores());
  if (num_workers > most) {
    return absl::FailedPreconditionError(
        absl::StrCat("this machine starts at most ", most, " workers, not ", num_workers));
  }
  ASSIGN_OR_RETURN(LocalState state, LocalState::OpenTemporary(context));
  const absl::Status status = UseCluster(context, state, num_workers, use);
  state.Remove();
  return status;
}

}  // namespace takt::cli
