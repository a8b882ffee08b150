// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "common/base/status.h"
#include "common/profile/probe.h"

namespace takt::profile {
namespace {

// Short enough that messages are most of a step, and long enough that a rank has often begun to
// wait before its message is sent.
constexpr double kPassSeconds = 1e-4;
constexpr int kMicrobatchesPerRank = 2;
// Workers trace about fifty short steps a second.
constexpr std::int64_t kSteps = 200;
constexpr std::int64_t kLargestMessage = std::int64_t{1} << 32;

}  // namespace

config::JobSpec MessageProbeJob(const config::JobSpec& job, int num_ranks, std::int64_t bytes) {
  TAKT_CHECK(num_ranks >= 2);
  config::JobSpec probe;
  probe.name = job.name;
  probe.model = {.family = model::Family::kEmulated,
                 .layers = num_ranks,
                 .context = 1,
                 .forward_seconds = kPassSeconds,
                 .input_grad_seconds = kPassSeconds,
                 .weight_grad_seconds = kPassSeconds,
                 .activation_bytes = std::clamp<std::int64_t>(bytes, 1, kLargestMessage)};
  probe.global_batch = kMicrobatchesPerRank * num_ranks;
  probe.steps = kSteps;
  probe.priority = job.priority;
  config::Parallelism& p = probe.parallelism;
  p.pipeline = num_ranks;
  p.data = 1;
  p.schedule = "1f1b";
  p.threads = job.parallelism.threads;
  p.transport = job.parallelism.transport;
  // Emulated layers run on cores, whose messages these do not carry.
  using enum config::TransportKind;
  if (p.transport == kNccl || p.transport == kCudaIpc) p.transport = kAuto;
  return probe;
}

}  // namespace takt::profile
