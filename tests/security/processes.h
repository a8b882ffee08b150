// SPDX-License-Identifier: Apache-2.0
// What the kernel tells of a process.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace takt::security {

double ResidentMib(pid_t pid);
int CountDescriptors(pid_t pid);

// "127.0.0.1:4711" of every listening TCP socket, sorted.
std::vector<std::string> ListeningAddresses(pid_t pid);

// /proc/PID/FILE, e.g. "cmdline".
std::string ProcFile(pid_t pid, const std::string& file);

}  // namespace takt::security
