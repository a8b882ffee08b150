// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>

namespace takt {

// open(2) of a path that had no symbolic link in it when somebody checked where it leads, e.g.
// data::ResolveUnderRoot: fails with ELOOP or ENOTDIR if it has one by now, anywhere, so that
// nobody can swap one in between the check and the use. O_CLOEXEC is added.
int OpenReal(const std::string& path, int flags, mode_t mode = 0);

}  // namespace takt
