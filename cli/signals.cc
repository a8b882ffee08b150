// SPDX-License-Identifier: Apache-2.0
#include "cli/signals.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "common/base/status.h"

namespace takt::cli {

SignalThread::SignalThread(std::initializer_list<int> signals, std::function<void(int)> on_signal) {
  sigemptyset(&signals_);
  for (const int signal : signals) sigaddset(&signals_, signal);
  TAKT_CHECK(pthread_sigmask(SIG_BLOCK, &signals_, &signals_before_) == 0);
  signal_fd_ = signalfd(-1, &signals_, SFD_CLOEXEC);
  stop_fd_ = eventfd(0, EFD_CLOEXEC);
  TAKT_CHECK(signal_fd_ >= 0 && stop_fd_ >= 0);
  thread_ = std::thread([this, on_signal = std::move(on_signal)] {
    pthread_setname_np(pthread_self(), "takt-signals");
    Run(on_signal);
  });
}

SignalThread::~SignalThread() {
  const std::uint64_t one = 1;
  TAKT_CHECK(write(stop_fd_, &one, sizeof(one)) == sizeof(one));
  thread_.join();
  close(signal_fd_);
  close(stop_fd_);
  pthread_sigmask(SIG_SETMASK, &signals_before_, nullptr);
}

void SignalThread::Run(const std::function<void(int)>& on_signal) const {
  while (true) {
    pollfd fds[] = {{.fd = signal_fd_, .events = POLLIN}, {.fd = stop_fd_, .events = POLLIN}};
    if (poll(fds, 2, -1) < 0) continue;
    if (fds[1].revents != 0) return;
    signalfd_siginfo info;
    if (read(signal_fd_, &info, sizeof(info)) == sizeof(info)) {
      on_signal(static_cast<int>(info.ssi_signo));
    }
  }
}

}  // namespace takt::cli
