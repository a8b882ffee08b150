// SPDX-License-Identifier: Apache-2.0
// Preloaded (LD_PRELOAD), it changes the wall clock that a program sees, by the environment:
//   TAKT_CLOCK_AHEAD     so many seconds ahead, always
//   TAKT_CLOCK_SET_BACK  an hour ahead, and set back to the right time so many seconds after the
//                        program's first look at it
//   neither              set two seconds ahead and back again four times a second. No more for what
//                        is to run, because timed waits of this Abseil go by the wall clock
//                        (docs/footguns.md)
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>

namespace {

constexpr long kJumpSeconds = 2;
constexpr long kHour = 3600;

timespec Read(clockid_t clock) {
  timespec time{};
  syscall(SYS_clock_gettime, clock, &time);
  return time;
}

long SecondsAhead() {
  if (const char* ahead = getenv("TAKT_CLOCK_AHEAD")) return std::atol(ahead);
  if (const char* set_back = getenv("TAKT_CLOCK_SET_BACK")) {
    static const time_t start = Read(CLOCK_MONOTONIC).tv_sec;
    return Read(CLOCK_MONOTONIC).tv_sec - start < std::atol(set_back) ? kHour : 0;
  }
  return Read(CLOCK_MONOTONIC).tv_nsec / 125'000'000 % 2 == 1 ? kJumpSeconds : 0;
}

timespec WallClock() {
  timespec time = Read(CLOCK_REALTIME);
  time.tv_sec += SecondsAhead();
  return time;
}

}  // namespace

extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  if (clock != CLOCK_REALTIME) return static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  *time = WallClock();
  return 0;
}

extern "C" int gettimeofday(timeval* time, void*) noexcept {
  const timespec now = WallClock();
  *time = {.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
  return 0;
}

extern "C" time_t time(time_t* out) noexcept {
  const time_t now = WallClock().tv_sec;
  if (out != nullptr) *out = now;
  return now;
}
