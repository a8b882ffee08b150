// SPDX-License-Identifier: Apache-2.0
// What happened in a simulation, for people, and a hash of all of it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "tests/simulation/event_loop.h"

namespace takt::simulation {

// One thread.
class Trace final {
 public:
  // loop: borrowed. print: is given each line at once; may be empty. keep: so many lines are kept.
  Trace(const EventLoop* loop, std::function<void(const std::string&)> print, std::size_t keep = 80)
      : loop_(*loop), print_(std::move(print)), keep_(keep) {}

  // The name of this directory differs from run to run. Lines say DISK in its place.
  void set_disk(const std::string& path) { disk_ = path; }

  // who: a worker, "coordinator", "client", "network", "disk" or "oracle".
  template <class... Parts>
  void Add(std::string_view who, const Parts&... parts) {
    AddLine(absl::StrFormat("%10.3f  %-12s %s", absl::ToDoubleSeconds(loop_.now()),
                            std::string(who), absl::StrCat(parts...)));
  }

  const std::deque<std::string>& lines() const { return lines_; }  // the last ones
  std::uint64_t hash() const { return hash_; }

 private:
  void AddLine(std::string line) {
    if (!disk_.empty()) absl::StrReplaceAll({{disk_, "DISK"}}, &line);
    if (line.size() > kMaxBytes) line.resize(kMaxBytes);
    for (const char c : line) hash_ = (hash_ ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    if (print_) print_(line);
    lines_.push_back(std::move(line));
    if (lines_.size() > keep_) lines_.pop_front();
  }

  static constexpr std::size_t kMaxBytes = 160;

  const EventLoop& loop_;
  const std::function<void(const std::string&)> print_;
  const std::size_t keep_;
  std::string disk_;
  std::deque<std::string> lines_;
  std::uint64_t hash_ = 0xcbf29ce484222325;  // FNV-1a
};

}  // namespace takt::simulation
