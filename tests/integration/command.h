// SPDX-License-Identifier: Apache-2.0
// Runs the programs that were built, as a user would, and keeps what they print.
#pragma once

#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "cli/local/process.h"
#include "common/base/status.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace takt::integration {

inline std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// A fresh directory that goes with the object.
class TestDirectory final {
 public:
  TestDirectory() { TAKT_CHECK(mkdtemp(path_.data()) != nullptr); }
  ~TestDirectory() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TestDirectory(const TestDirectory&) = delete;
  TestDirectory& operator=(const TestDirectory&) = delete;

  std::string Path(const std::string& name) const { return path_ + "/" + name; }
  std::string Write(const std::string& name, const std::string& text) const {
    std::ofstream(Path(name), std::ios::binary) << text;
    return Path(name);
  }

 private:
  std::string path_ = "/tmp/takt-integration-XXXXXX";
};

// A program of build/PRESET/bin that runs; killed with the object.
class Command final {
 public:
  // environment: "NAME=value" in front of the inherited ones.
  Command(const std::string& program, const std::vector<std::string>& arguments,
          const std::vector<std::string>& environment = {}) {
    std::vector<std::string> argv = {"/usr/bin/env"};
    argv.insert(argv.end(), environment.begin(), environment.end());
    // The shell opens the files, then becomes the program.
    argv.insert(argv.end(),
                {"/bin/sh", "-c", R"(out=$1 err=$2; shift 2; exec "$@" >"$out" 2>"$err")", "sh",
                 directory_.Path("out"), directory_.Path("err"),
                 absl::StrCat(TAKT_BINARY_DIR, "/", program)});
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    auto process =
        cli::Process::Spawn({.name = program, .argv = argv, .log_path = directory_.Path("log")});
    TAKT_CHECK(process.ok());
    process_ = std::make_unique<cli::Process>(*std::move(process));
  }
  ~Command() { cli::StopAll({process_.get()}, absl::ZeroDuration()); }

  pid_t pid() const { return process_->pid(); }
  // To the process alone, as a shell's `kill`.
  void Signal(int signal) const { kill(pid(), signal); }
  // "exit status 0", "signal 9 (Killed)", or "still running" when the time is over.
  std::string Wait(absl::Duration timeout = absl::Seconds(120)) {
    return process_->WaitUntil(absl::Now() + timeout) ? process_->EndText() : "still running";
  }
  std::string out() const { return ReadFile(directory_.Path("out")); }
  std::string err() const { return ReadFile(directory_.Path("err")); }
  // Until stdout or stderr holds `text`; false: it ended, or took too long, without.
  bool WaitForText(const std::string& text, absl::Duration timeout = absl::Seconds(120)) {
    const absl::Time deadline = absl::Now() + timeout;
    while (true) {
      const bool ended = process_->HasEnded();
      if (absl::StrContains(out(), text) || absl::StrContains(err(), text)) return true;
      if (ended || absl::Now() > deadline) return false;
      absl::SleepFor(absl::Milliseconds(10));
    }
  }

 private:
  const TestDirectory directory_;
  std::unique_ptr<cli::Process> process_;
};

// `out` as one JSON value a line.
inline std::vector<nlohmann::json> JsonLines(const std::string& out) {
  std::vector<nlohmann::json> lines;
  for (const auto line : absl::StrSplit(out, '\n', absl::SkipEmpty())) {
    lines.push_back(nlohmann::json::parse(std::string(line)));
  }
  return lines;
}

// Processes of this machine whose command line holds `text`; zombies have none.
inline int CountProcesses(const std::string& text) {
  int count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    if (absl::StrContains(ReadFile(entry.path().string() + "/cmdline"), text)) ++count;
  }
  return count;
}

// As above, until there are none.
inline bool WaitForNoProcess(const std::string& text, absl::Duration timeout = absl::Seconds(60)) {
  const absl::Time deadline = absl::Now() + timeout;
  while (CountProcesses(text) > 0) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(20));
  }
  return true;
}

}  // namespace takt::integration
