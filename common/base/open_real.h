// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>

namespace takt {

// Opens a path as open(2) does, with O_CLOEXEC. The path had no symbolic link in it when somebody
// checked where it leads (e.g. data::ResolveUnderRoot). If any part of it is a link by now, this
// fails with ELOOP or ENOTDIR, so nobody can put a link there between the check and the use.
int OpenReal(const std::string& path, int flags, mode_t mode = 0);

}  // namespace takt
