// SPDX-License-Identifier: Apache-2.0
// How the ranks that sum the same values connect.
#pragma once

namespace takt {

// The most ranks of a group that connect each with each if neighbours alone are enough. More of
// them are a chain (worker/transport/chain_collective.h).
inline constexpr int kMostDirectRanks = 8;

}  // namespace takt
