// SPDX-License-Identifier: Apache-2.0
// What the commands that end with a certificate have in common.
#pragma once

#include "cli/base/context.h"
#include "common/certificates/authority.h"

namespace takt::cli {

// Where certificate and key are, on stdout; whose they are and until when.
void PrintIssued(const Context& context, const certificates::IssuedFiles& files);

}  // namespace takt::cli
