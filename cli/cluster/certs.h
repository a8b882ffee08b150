// SPDX-License-Identifier: Apache-2.0
// The commands that issue or fetch a certificate share this printing.
#pragma once

#include "cli/base/context.h"
#include "common/certificates/authority.h"

namespace takt::cli {

// Prints the paths of certificate and key, whose they are, and when they expire.
void PrintIssued(const Context& context, const certificates::IssuedFiles& files);

}  // namespace takt::cli
