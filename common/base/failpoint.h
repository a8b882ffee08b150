// SPDX-License-Identifier: Apache-2.0
// Names the places where a test ends the process: at changes that must last, and between a commit
// and what follows from it. Builds with NDEBUG have none of them.
#pragma once

#include <string_view>

namespace takt {

// The exit status of a process that ended at a failpoint.
inline constexpr int kFailpointExit = 71;

// Ends the process at once if the environment has TAKT_FAILPOINT=NAME:N and this is the Nth time
// that it passes NAME. It reads the environment itself, because only tests set this. Thread-safe.
void PassFailpoint(std::string_view name);

}  // namespace takt

#ifdef NDEBUG
#define TAKT_FAILPOINT(name) static_cast<void>(0)
#else
#define TAKT_FAILPOINT(name) ::takt::PassFailpoint(name)
#endif
