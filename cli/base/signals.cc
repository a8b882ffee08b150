// SPDX-License-Identifier: Apache-2.0
#include "cli/base/signals.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "common/base/status.h"

namespace takt::cli {
namespace {

// The descriptor to which the handler writes; -1: no object exists.
std::atomic<int> write_fd = -1;

void WriteSignal(int signal) {
  const int error = errno;
  const auto byte = static_cast<unsigned char>(signal);
  [[maybe_unused]] const auto written = write(write_fd, &byte, 1);
  errno = error;
}

}  // namespace

SignalThread::SignalThread(std::initializer_list<int> signals, std::function<void(int)> on_signal) {
  TAKT_CHECK(write_fd == -1 && pipe2(pipe_, O_CLOEXEC) == 0);
  write_fd = pipe_[1];
  thread_ = std::thread([fd = pipe_[0], on_signal = std::move(on_signal)] {
    pthread_setname_np(pthread_self(), "takt-signals");
    unsigned char signal = 0;
    while (true) {
      const auto got = read(fd, &signal, 1);
      if (got < 0 && errno == EINTR) continue;
      if (got != 1 || signal == 0) return;
      on_signal(signal);
    }
  });
  struct sigaction action {};
  action.sa_handler = WriteSignal;
  action.sa_flags = SA_RESTART;
  for (const int signal : signals) {
    struct sigaction before {};
    TAKT_CHECK(sigaction(signal, &action, &before) == 0);
    before_.emplace_back(signal, before);
  }
}

SignalThread::~SignalThread() {
  for (const auto& [signal, before] : before_) sigaction(signal, &before, nullptr);
  WriteSignal(0);
  thread_.join();
  write_fd = -1;
  close(pipe_[0]);
  close(pipe_[1]);
}

}  // namespace takt::cli
