// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace takt::backend {

// Sets the number of OpenMP threads of the calling thread to one. Debian's oneDNN runs its loops on
// OpenMP threads, and how it cuts them depends on how many the calling thread may use.
void UseOneOpenMpThread();

}  // namespace takt::backend
