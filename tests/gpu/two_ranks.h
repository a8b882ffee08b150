// SPDX-License-Identifier: Apache-2.0
// Runs a test program as two processes, which are ranks 0 and 1 and share one GPU.
#pragma once

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace takt::gpu {

// Starts this program twice, as `PROGRAM --rank RANK DIRECTORY`, and expects that both succeed.
// label: names the directory in which they meet. It is removed in the end.
void RunTwoRanks(const std::string& label);

// The main function of a program with such tests. run_rank: what one of the two does.
int MainWithRanks(int argc, char** argv,
                  absl::FunctionRef<absl::Status(int rank, const std::string& directory)> run_rank);

}  // namespace takt::gpu
