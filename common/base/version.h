// SPDX-License-Identifier: Apache-2.0
// What this program is and what it speaks. The program's version and the protocol's move
// separately.
#pragma once

namespace takt {

inline constexpr char kTaktVersion[] = TAKT_VERSION;

// Of takt.v1.AttachmentService. A coordinator that speaks N accepts workers of N-1 and N.
inline constexpr int kProtocolVersion = 1;

}  // namespace takt
