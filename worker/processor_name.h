// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <istream>
#include <string>

namespace takt::worker {

// Returns the name of the processor that /proc/cpuinfo (`cpuinfo`) gives, for example
// "AMD EPYC 9B14", at most 100 bytes of it. If it gives none, as on ARM, this is the name of the
// architecture, for example "aarch64". Times that were measured are kept under this name.
std::string ProcessorName(std::istream& cpuinfo);

}  // namespace takt::worker
