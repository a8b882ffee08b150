// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace takt::backend {

// oneDNN of Debian runs its loops on OpenMP threads, and how it cuts them depends on how many the
// calling thread may use. Sets that number, which belongs to the calling thread, to one.
void UseOneOpenMpThread();

}  // namespace takt::backend
