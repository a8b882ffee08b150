// SPDX-License-Identifier: Apache-2.0
#include "common/base/version.h"

namespace takt {

const char* const kTaktBuild = TAKT_BUILT_IN;

}  // namespace takt
