// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "cli/app.h"
#include "cli/base/report.h"
#include "common/base/lock_checks.h"
#include "common/rpc/endpoint.h"

namespace {

std::optional<std::string> Environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
}

int ColumnsOf(int fd) {
  winsize size{};
  return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

takt::cli::Terminal MakeTerminal() {
  const bool err_is_tty =
      isatty(STDERR_FILENO) != 0 && Environment("TERM").value_or("dumb") != "dumb";
  return {.out = std::cout,
          .err = std::cerr,
          .out_is_tty = isatty(STDOUT_FILENO) != 0,
          .err_is_tty = err_is_tty,
          .color = err_is_tty && Environment("NO_COLOR").value_or("").empty(),
          .columns = ColumnsOf(STDERR_FILENO)};
}

// True if the reader of `fd` is gone: `| head` has read enough, or the terminal is closed.
bool ReaderIsGone(int fd) {
  pollfd writable{.fd = fd, .events = POLLOUT, .revents = 0};
  return poll(&writable, 1, 0) == 1 && (writable.revents & (POLLERR | POLLHUP)) != 0;
}

// Makes a command fail if stdout did not take all of its output.
takt::cli::ExitCode CheckOutput(const takt::cli::Context& context, takt::cli::ExitCode code) {
  if (std::cout.flush().good() || ReaderIsGone(STDOUT_FILENO)) return code;
  takt::cli::PrintError(
      context, absl::DataLossError("stdout did not take all of the output: its disk is full, or it "
                                   "is closed; write to another place"));
  return code == takt::cli::ExitCode::kDone ? takt::cli::ExitCode::kFailed : code;
}

}  // namespace

int main(int argc, char** argv) {
  takt::SkipLockChecks();
  std::ios::sync_with_stdio(false);
  signal(SIGPIPE, SIG_IGN);  // a closed pipe then shows as a failed write
  takt::rpc::RequireTls13();
  // The results of calls already say what gRPC would print.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  std::error_code error;
  takt::cli::Context context{
      .terminal = MakeTerminal(),
      .environment = Environment,
      .program_directory = std::filesystem::read_symlink("/proc/self/exe", error).parent_path()};
  const takt::cli::ExitCode code =
      takt::cli::RunApp(std::vector<std::string>(argv + 1, argv + argc), context);
  return static_cast<int>(CheckOutput(context, code));
}
