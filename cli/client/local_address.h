// SPDX-License-Identifier: Apache-2.0
// Finds the cluster that `takt local` runs on this machine: its state directory, whether it runs,
// and the address of its coordinator. cli/local/local_state.h describes the directory.
#pragma once

#include <optional>
#include <string>

#include "cli/base/context.h"

namespace takt::cli {

// Files in the state directory.
inline constexpr char kLocalLockName[] = "/local.lock", kLocalAddressName[] = "/address";

// Returns the state directory of `local up`: $XDG_STATE_HOME/takt/local, else
// ~/.local/state/takt/local.
std::string DefaultStateDirectory(const Context& context);

// Every local cluster of this user keeps the kernels that were chosen on its GPUs in this
// directory. It lies beside the default state directory.
std::string KernelPlanDirectory(const Context& context);

// Returns whether some process holds the lock of the state directory.
bool LocalClusterRuns(const std::string& directory);

// Returns the address that `local up` wrote into the state directory. Empty if there is none or its
// cluster is gone.
std::optional<std::string> ReadLocalAddress(const std::string& directory);

// Returns whether an address is in the run/ of a state directory: the workers there have `/` as
// their roots.
bool IsOfLocalCluster(const std::string& address);

}  // namespace takt::cli
