// SPDX-License-Identifier: Apache-2.0
// Runs a model in a child process for `takt eval` and `takt generate`. The command line has no
// kernels, so it starts takt-worker as such a child (cli/model/model_child.h).
#pragma once

#include <string>
#include <vector>

namespace takt::inference {

// The first argument of a takt-worker that is run as such a child.
inline constexpr char kModelChild[] = "model-child";

// Does the work of the child: reads a request from stdin, writes the answers to stdout and returns
// the exit status. arguments: what follows kModelChild, which is the number of the caller's
// process.
int RunModelChild(const std::vector<std::string>& arguments);

}  // namespace takt::inference
