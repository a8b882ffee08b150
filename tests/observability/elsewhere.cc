// SPDX-License-Identifier: Apache-2.0
// Becomes a program in another network namespace, or with a steady clock of its own:
//   takt-elsewhere [--net FILE] [--clock-ahead NANOSECONDS] PROGRAM ARGUMENTS...
// Needs the rights of root. Exit status 125: it could not be done.
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

namespace {

constexpr int kCannot = 125;

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "takt-elsewhere: %s: %s\n", what, std::strerror(errno));
  std::exit(kCannot);
}

void Enter(const char* file, int type) {
  const int space = open(file, O_RDONLY | O_CLOEXEC);
  if (space < 0 || setns(space, type) != 0) Fail(file);
  close(space);
}

void SetClockAhead(long long nanos) {
  constexpr long long kSecond = 1'000'000'000;
  long long seconds = nanos / kSecond, rest = nanos % kSecond;
  if (rest < 0) {
    rest += kSecond;
    --seconds;
  }
  if (unshare(CLONE_NEWTIME) != 0) Fail("a time namespace");
  std::ofstream offsets("/proc/self/timens_offsets");
  offsets << "monotonic " << seconds << " " << rest << "\n";
  if (!offsets.flush()) Fail("timens_offsets");
  offsets.close();
  // So far it is only that of children to come.
  Enter("/proc/self/ns/time_for_children", CLONE_NEWTIME);
}

}  // namespace

int main(int argc, char** argv) {
  int next = 1;
  for (; next + 1 < argc && std::strncmp(argv[next], "--", 2) == 0; next += 2) {
    if (std::strcmp(argv[next], "--net") == 0) {
      Enter(argv[next + 1], CLONE_NEWNET);
    } else if (std::strcmp(argv[next], "--clock-ahead") == 0) {
      SetClockAhead(std::atoll(argv[next + 1]));
    } else {
      std::fprintf(stderr, "takt-elsewhere: unknown option %s\n", argv[next]);
      return kCannot;
    }
  }
  if (next >= argc) return kCannot;
  execv(argv[next], argv + next);
  Fail(argv[next]);
}
