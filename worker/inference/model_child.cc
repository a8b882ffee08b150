// SPDX-License-Identifier: Apache-2.0
#include "worker/inference/model_child.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>

#include "absl/strings/numbers.h"
#include "common/base/status.h"
#include "worker/inference/requests_serde.h"
#include "worker/inference/serve.h"

namespace takt::inference {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;

absl::Status Write(const Answer& answer) {
  const std::string bytes = FormatAnswer(answer);
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t written = write(STDOUT_FILENO, bytes.data() + done, bytes.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return FileError(errno, "standard output");
    done += static_cast<std::size_t>(written);
  }
  return absl::OkStatus();
}

}  // namespace

int RunModelChild(const std::vector<std::string>& arguments) {
  pid_t parent = 0;
  if (arguments.size() != 1 || !absl::SimpleAtoi(arguments[0], &parent)) {
    std::fprintf(stderr, "takt itself starts takt-worker with this argument\n");
    return kExitUsage;
  }
  // The kernel kills the child when the command ends. The second line finds a command that ended
  // before the first one.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) return kExitFailed;
  // If the machine has no more memory, the kernel kills the child before anything else.
  if (!(std::ofstream("/proc/self/oom_score_adj") << "1000").flush()) std::perror("oom_score_adj");
  const absl::StatusOr<Request> request =
      ParseRequest({std::istreambuf_iterator<char>(std::cin), {}});
  const absl::Status status = request.ok() ? Serve(*request, Write) : request.status();
  if (status.ok()) return 0;
  // If nobody reads the answers, there is nobody to tell.
  return Write(status).ok() ? 0 : kExitFailed;
}

}  // namespace takt::inference
