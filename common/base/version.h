// SPDX-License-Identifier: Apache-2.0
// What this program is and what it speaks. The program's version and the protocol's move
// separately.
#pragma once

namespace takt {

inline constexpr char kTaktVersion[] = TAKT_VERSION;

// What was built in of CUDA: "cuda 13.0, nccl 2.28.9, sm_80 sm_90 compute_90", or "no cuda".
extern const char* const kTaktBuild;

// Of takt.v1.AttachmentService. A coordinator that speaks N accepts workers of N-1 and N.
inline constexpr int kProtocolVersion = 1;

}  // namespace takt
