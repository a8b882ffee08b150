// SPDX-License-Identifier: Apache-2.0
#include "common/metrics/catalog.h"

#include <array>

namespace takt::metrics {
namespace {

template <class... Metrics>
constexpr std::array<const Metric*, sizeof...(Metrics)> PointersTo(const Metrics&... metrics) {
  return {&metrics...};
}

// The order is that of docs/metrics.md.
constexpr auto kAllMetrics = PointersTo(
    kJobState, kJobStep, kJobTargetStep, kJobEta, kLastStepTimestamp, kStepDuration, kStepPredicted,
    kReplanGain, kStraggler, kStepComponent, kBubbleFraction, kBubblePredicted, kRankCompute,
    kRankComputePredicted, kRankIdle, kTokens, kLoss, kValidationLoss, kGradNorm, kLearningRate,
    kNonfiniteSteps, kModelFlopsUtilization, kMemoryPredicted, kCheckpoints, kCheckpointStep,
    kCheckpointTimestamp, kCheckpointEvery, kCheckpointDuration, kRecoveries, kJobs, kWorkers,
    kWorkerConnected, kWorkerLosses, kWorkerFaultScore, kHeldJobs, kReadOnly, kLeader, kEpoch,
    kLeaderLease, kRecoveryDuration, kRankInfo, kOpDuration, kP2pBytes, kP2pWait, kInFlight,
    kExpertLoad, kExpertEntropy, kExpertDropped, kMemoryCopies, kMemoryCopyStep, kFp8Overflows,
    kFp8Underflows, kUndoneSteps, kHeldSteps, kUndoneSeconds, kMemory, kMemoryLimit,
    kCommandsRefused, kThroughRelay, kRelayAttached, kRelayWorkers, kRelayMessages, kRelayFrames,
    kCertificateExpiry, kBuildInfo);

using Of = Extent::Of;

// Some labels have their list of values in another place. metrics_test.cc holds their numbers.
constexpr Label kAllLabels[] = {
    {"job", "name of the job", {0, Of::kJobs}},
    {"state",
     "of a job: QUEUED, PLANNING, STARTING, RUNNING, RECOVERING, PAUSED, SUCCEEDED, FAILED, "
     "CANCELLED; of workers: idle, busy, away, lost, drained, quarantined",
     {9}},
    {"stage", "number of the stage; empty: the instruction belongs to none", {0, Of::kStages}},
    {"block", "number of a block with experts", {0, Of::kExpertBlocks}},
    {"pp_rank", "number of the pp rank", {0, Of::kPpRanks}},
    {"dp_rank", "number of the replica", {0, Of::kDpRanks}},
    {"cp_rank", "number of the part of each sequence; 0: no rank has other parts", {1}},
    {"tp_rank", "number of the part of each layer; 0: no rank has other parts", {1}},
    {"kind",
     "of instructions: LOAD, F, I, W, B, O, SEND, RECV, ... as docs/programs.md has them, S, T and "
     "the meetings of a spread vocabulary among them; of memory: weights, gradients, optimizer, "
     "stash, messages, tokens, scratch, snapshot, process, copies",
     {29}},
    {"component",
     "compute, imbalance, schedule, communication, data, sync, runtime (docs/explain.md)",
     {7}},
    {"cause",
     "of idle time: peer, link, reduction, sync, data, runtime, pause (docs/tracing.md); of "
     "refused commands: other_cluster, later_epoch",
     {7}},
    {"direction", "activation, gradient", {2}},
    {"result", "done, failed", {2}},
    {"operand", "of a product: activation, weight, gradient", {3}},
    {"phase", "of a checkpoint: snapshot, write; of a recovery: stop, queue, start", {3}},
    {"worker", "name of the worker", {0, Of::kWorkers}},
    {"program", "takt-coordinator, takt-worker, takt-relay", {3}},
    {"version", "of the program", {1}},
    {"protocol_version", "of the protocol between them", {1}},
};

}  // namespace

bool ServedOnDemand(const Metric& metric, int num_ranks) {
  return &metric == &kOpDuration && num_ranks > kMostRanksInDetail;
}

std::span<const Metric* const> AllMetrics() { return kAllMetrics; }

std::span<const Label> AllLabels() { return kAllLabels; }

}  // namespace takt::metrics
