// SPDX-License-Identifier: Apache-2.0
// Declares every metric that a Takt program exposes, with name, unit, help and labels.
// docs/metrics.md is made from this. Metrics have base units only. No label grows without bound, so
// there is no label for steps or microbatches. The series of a job are removed some time after it
// has ended.
#pragma once

#include <span>
#include <string_view>

#include "common/metrics/metric.h"

namespace takt::metrics {

// Declares the metrics that one source exposes.
struct ExposedBy {
  using Text = std::string_view;

  Source source;

  constexpr Metric Counter(Text name, Unit unit, const LabelNames& labels, Text help) const {
    return {name, source, Kind::kCounter, unit, help, labels};
  }
  constexpr Metric Gauge(Text name, Unit unit, const LabelNames& labels, Text help) const {
    return {name, source, Kind::kGauge, unit, help, labels};
  }
  constexpr Metric Histogram(Text name, Unit unit, const LabelNames& labels, Text help) const {
    return {name, source, Kind::kHistogram, unit, help, labels};
  }
};
inline constexpr ExposedBy kByCoordinator{Source::kCoordinator};
inline constexpr ExposedBy kByWorker{Source::kWorker};
inline constexpr ExposedBy kByRelay{Source::kRelay};
inline constexpr ExposedBy kByAll{Source::kAll};

// These describe the job, as the coordinator knows it.
inline constexpr Metric kJobState =
    kByCoordinator.Gauge("takt_job_state", Unit::kNone, {"job", "state"},
                         "1 for the state that the job is in, 0 for the others.");
inline constexpr Metric kJobStep = kByCoordinator.Gauge("takt_job_step", Unit::kNone, {"job"},
                                                        "Last step committed; 0 before the first.");
inline constexpr Metric kJobTargetStep = kByCoordinator.Gauge(
    "takt_job_target_step", Unit::kNone, {"job"}, "The step after which the job is done.");
inline constexpr Metric kJobEta =
    kByCoordinator.Gauge("takt_job_eta_seconds", Unit::kSeconds, {"job"},
                         "Time until the job is done if each step takes as long as the last one, "
                         "or before the first as long as predicted.");
inline constexpr Metric kLastStepTimestamp =
    kByCoordinator.Gauge("takt_last_step_timestamp_seconds", Unit::kUnixSeconds, {"job"},
                         "When the last step was committed; before the first one of a generation, "
                         "when it began to run.");
inline constexpr Metric kStepDuration =
    kByCoordinator.Histogram("takt_step_duration_seconds", Unit::kSeconds, {"job"},
                             "Time from one step's end to the next one's.");
inline constexpr Metric kStepPredicted =
    kByCoordinator.Gauge("takt_step_predicted_seconds", Unit::kSeconds, {"job"},
                         "Time of a step that the simulator predicts.");
inline constexpr Metric kReplanGain =
    kByCoordinator.Gauge("takt_job_replan_gain_ratio", Unit::kRatio, {"job"},
                         "Share of a step that the plan that the job would get now is predicted to "
                         "save, by what was measured since it began; 0: none, or it is not known.");
inline constexpr Metric kStraggler = kByCoordinator.Gauge(
    "takt_job_straggler_ratio", Unit::kRatio, {"job"},
    "How many times as long as predicted the straggler of the job computes, beside the other "
    "ranks, when it was named; 0: there is none.");
inline constexpr Metric kStepComponent = kByCoordinator.Gauge(
    "takt_step_component_seconds", Unit::kSeconds, {"job", "component"},
    "Where the time of the newest explained step went, by cause: the components of a job add up to "
    "that step. One may be negative: docs/explain.md says when.");
inline constexpr Metric kBubbleFraction =
    kByCoordinator.Gauge("takt_bubble_fraction", Unit::kRatio, {"job", "pp_rank"},
                         "Share of the last step in which this pp rank did not compute.");
inline constexpr Metric kBubblePredicted =
    kByCoordinator.Gauge("takt_bubble_predicted_fraction", Unit::kRatio, {"job"},
                         "Share of a step without compute that the simulator predicts.");
inline constexpr Metric kRankCompute =
    kByCoordinator.Gauge("takt_rank_compute_seconds", Unit::kSeconds, {"job", "pp_rank"},
                         "Compute of this pp rank in the newest explained step: forward and "
                         "backward, mean of its replicas.");
inline constexpr Metric kRankComputePredicted =
    kByCoordinator.Gauge("takt_rank_compute_predicted_seconds", Unit::kSeconds, {"job", "pp_rank"},
                         "The same, as the plan has it; 0: it has none.");
inline constexpr Metric kRankIdle = kByCoordinator.Gauge(
    "takt_rank_idle_seconds", Unit::kSeconds, {"job", "pp_rank", "cause"},
    "Time without compute of this pp rank in the newest explained step, by what it waited for.");
inline constexpr Metric kTokens = kByCoordinator.Counter(
    "takt_tokens_total", Unit::kTokens, {"job"}, "Scored tokens trained on by all ranks.");
inline constexpr Metric kLoss =
    kByCoordinator.Gauge("takt_loss", Unit::kNats, {"job"},
                         "Mean loss per scored token of the last step's global batch.");
inline constexpr Metric kValidationLoss =
    kByCoordinator.Gauge("takt_validation_loss", Unit::kNats, {"job"},
                         "Mean loss per scored token of the last validation.");
inline constexpr Metric kGradNorm =
    kByCoordinator.Gauge("takt_grad_norm", Unit::kNone, {"job"},
                         "Norm of the last step's gradient over all parameters, before clipping.");
inline constexpr Metric kLearningRate = kByCoordinator.Gauge(
    "takt_learning_rate", Unit::kNone, {"job"}, "Learning rate of the last step.");
inline constexpr Metric kNonfiniteSteps =
    kByCoordinator.Counter("takt_nonfinite_steps_total", Unit::kNone, {"job"},
                           "Steps whose loss or gradient norm is not a finite number.");
inline constexpr Metric kModelFlopsUtilization =
    kByCoordinator.Gauge("takt_model_flops_utilization", Unit::kRatio, {"job"},
                         "FLOPs of the model (nothing computed twice counts) in the last step, as "
                         "a share of what the job's workers could have done at the matmul rates "
                         "that they measured in the job's precision; 0 for emulated models.");
inline constexpr Metric kMemoryPredicted =
    kByCoordinator.Gauge("takt_memory_predicted_bytes", Unit::kBytes, {"job", "pp_rank"},
                         "Memory that the plan expects the worker of this pp rank to need.");
inline constexpr Metric kCheckpoints =
    kByCoordinator.Counter("takt_checkpoints_total", Unit::kNone, {"job", "result"},
                           "Checkpoints of a job that became visible (done) or did not (failed).");
inline constexpr Metric kCheckpointStep =
    kByCoordinator.Gauge("takt_checkpoint_step", Unit::kNone, {"job"},
                         "Step of the newest checkpoint that is visible, or that the job went on "
                         "from; 0: there is none.");
inline constexpr Metric kCheckpointTimestamp = kByCoordinator.Gauge(
    "takt_checkpoint_timestamp_seconds", Unit::kUnixSeconds, {"job"},
    "When the newest checkpoint became visible; before the first, when the job began to run.");
inline constexpr Metric kCheckpointEvery = kByCoordinator.Gauge(
    "takt_checkpoint_every_steps", Unit::kNone, {"job"},
    "Steps from one checkpoint to the next, as asked for; 0: none, or only at the end.");
inline constexpr Metric kCheckpointDuration = kByCoordinator.Histogram(
    "takt_checkpoint_duration_seconds", Unit::kSeconds, {"job", "phase"},
    "Of the slowest rank: snapshot, for which training pauses, and write, beside it.");
inline constexpr Metric kRecoveries =
    kByCoordinator.Counter("takt_job_recoveries_total", Unit::kNone, {"job"},
                           "Faults after which the job went on by itself.");

// These describe the cluster, as the coordinator knows it.
inline constexpr Metric kJobs =
    kByCoordinator.Gauge("takt_jobs", Unit::kNone, {"state"}, "Jobs by state.");
inline constexpr Metric kWorkers = kByCoordinator.Gauge(
    "takt_workers", Unit::kNone, {"state"},
    "Workers by state: idle, busy, away (nothing is heard of it, but it is not given up), lost "
    "(but not those that left as asked), and beside them drained and quarantined.");
inline constexpr Metric kWorkerConnected = kByCoordinator.Gauge(
    "takt_worker_connected", Unit::kNone, {"worker"},
    "1 while the worker is attached, 0 while it is away, and from its loss until it is forgotten "
    "an hour later; not there for one that left as asked, or that is drained and lost. Of more "
    "than 1000 workers only those that are not attached or have a fault score are there, at most "
    "1000.");
inline constexpr Metric kWorkerLosses =
    kByCoordinator.Counter("takt_worker_losses_total", Unit::kNone, {},
                           "Times that the coordinator lost a worker, because it did not come back "
                           "after its stream ended, or its lease expired. A worker that left as "
                           "asked is not counted.");
inline constexpr Metric kWorkerFaultScore = kByCoordinator.Gauge(
    "takt_worker_fault_score", Unit::kNone, {"worker"},
    "Faults of the last day that are blamed on the worker; each counts half after a day. It is "
    "there for the same workers as takt_worker_connected.");
inline constexpr Metric kHeldJobs = kByCoordinator.Gauge(
    "takt_held_jobs", Unit::kNone, {},
    "Jobs that workers hold and the coordinator's state does not know, until somebody adopts or "
    "abandons them.");
inline constexpr Metric kReadOnly = kByCoordinator.Gauge(
    "takt_coordinator_read_only", Unit::kNone, {},
    "1 while the disk of the coordinator's state is full and it refuses what would change "
    "anything; otherwise 0.");
inline constexpr Metric kLeader = kByCoordinator.Gauge(
    "takt_coordinator_leader", Unit::kNone, {},
    "1 if this coordinator leads, 0 while it follows; one whose state is in a file always leads.");
inline constexpr Metric kEpoch = kByCoordinator.Gauge(
    "takt_coordinator_epoch", Unit::kNone, {},
    "The epoch of the coordinator that leads. It rises with each change of the leader, and with "
    "each start.");
inline constexpr Metric kLeaderLease = kByCoordinator.Gauge(
    "takt_coordinator_lease_seconds", Unit::kSeconds, {},
    "How long this coordinator leads on if it cannot renew its lease in etcd; not there if it does "
    "not lead by a lease.");
inline constexpr Metric kRecoveryDuration =
    kByCoordinator.Histogram("takt_recovery_duration_seconds", Unit::kSeconds, {"phase"},
                             "From a fault until the job trains again: stop (its ranks let go), "
                             "queue (its gang is there), start (planned, loaded, connected).");

// A worker measures these of the rank that it holds.
inline constexpr Metric kRankInfo = kByWorker.Gauge(
    "takt_rank_info", Unit::kNone, {"job", "pp_rank", "dp_rank", "cp_rank", "tp_rank"},
    "1; its labels say which rank of which job this worker holds, or held last.");
inline constexpr Metric kOpDuration =
    kByWorker.Histogram("takt_op_duration_seconds", Unit::kSeconds, {"job", "stage", "kind"},
                        "Time of one instruction from when all that it needs of its own rank is "
                        "there to its end; of messages and sums, waiting for other ranks is part "
                        "of it. A W of several microbatches counts as so many of equal length.");
inline constexpr Metric kP2pBytes =
    kByWorker.Counter("takt_p2p_bytes_total", Unit::kBytes, {"job", "pp_rank", "direction"},
                      "Activation and gradient bytes sent to neighbours of the pipeline.");
inline constexpr Metric kP2pWait = kByWorker.Counter(
    "takt_p2p_wait_seconds_total", Unit::kSeconds, {"job", "pp_rank", "direction"},
    "Time in which nothing was computed because a message of that direction had not come, or not "
    "gone.");
inline constexpr Metric kInFlight =
    kByWorker.Gauge("takt_in_flight_microbatches", Unit::kNone, {"job", "stage"},
                    "Most microbatches whose activations this stage holds at one time in a step.");
inline constexpr Metric kExpertLoad = kByWorker.Gauge(
    "takt_expert_load_ratio", Unit::kRatio, {"job", "block"},
    "Rows of the fullest expert of this block in the last step over the mean of its experts, as "
    "this rank counted them; 1: all are equally full.");
inline constexpr Metric kExpertEntropy = kByWorker.Gauge(
    "takt_expert_entropy_ratio", Unit::kRatio, {"job", "block"},
    "Entropy of the experts' shares of the rows of this block in the last step over that of equal "
    "shares: 1: all are equally full; near 0: the router has collapsed to few.");
inline constexpr Metric kExpertDropped = kByWorker.Counter(
    "takt_expert_dropped_total", Unit::kNone, {"job", "block"},
    "Choices of an expert by a token that no expert of this block computed. It stays 0, because "
    "capacities have no bound.");
inline constexpr Metric kMemoryCopies = kByWorker.Counter(
    "takt_memory_copies_total", Unit::kNone, {"job", "pp_rank", "result"},
    "Copies of this rank's state that became whole in memory (done) or did not (failed); after a "
    "failure the rank makes no more, unless one was only damaged on its way.");
inline constexpr Metric kMemoryCopyStep =
    kByWorker.Gauge("takt_memory_copy_step", Unit::kNone, {"job", "pp_rank"},
                    "Step of the newest copy of this rank's state that is whole in memory.");
inline constexpr Metric kFp8Overflows = kByWorker.Counter(
    "takt_fp8_overflows_total", Unit::kNone, {"job", "pp_rank", "operand"},
    "Values that a product's FP8 format could not hold and that became its largest; only of jobs "
    "with precision: fp8. They were infinite.");
inline constexpr Metric kFp8Underflows = kByWorker.Counter(
    "takt_fp8_underflows_total", Unit::kNone, {"job", "pp_rank", "operand"},
    "Values other than zero that became zero in a product's FP8 format; only of jobs with "
    "precision: fp8. A value counts each time that it is rounded.");

inline constexpr Metric kUndoneSteps = kByWorker.Counter(
    "takt_undone_steps_total", Unit::kNone, {"job", "pp_rank"},
    "Steps without a barrier whose clipping was not foreseen, so that the forwards ahead of them "
    "ran again.");
inline constexpr Metric kHeldSteps = kByWorker.Counter(
    "takt_held_steps_total", Unit::kNone, {"job", "pp_rank"},
    "Steps without a barrier that waited for the norm all the same, because steps shortly before "
    "them were clipped.");
inline constexpr Metric kUndoneSeconds = kByWorker.Counter(
    "takt_undone_seconds_total", Unit::kSeconds, {"job", "pp_rank"},
    "Time from the end of undone steps until the forwards ahead of them had run again.");

// These describe the worker's process.
inline constexpr Metric kMemory =
    kByWorker.Gauge("takt_memory_bytes", Unit::kBytes, {"kind"},
                    "Memory by what it is for: what each kind has allocated, and as `process` what "
                    "the process has resident beyond them.");
inline constexpr Metric kMemoryLimit = kByWorker.Gauge(
    "takt_memory_limit_bytes", Unit::kBytes, {},
    "Memory that the process may use: of its control group or, if less, of the machine.");
inline constexpr Metric kCommandsRefused = kByWorker.Counter(
    "takt_worker_commands_refused_total", Unit::kNone, {"cause"},
    "Commands of coordinators that the worker refused, the welcome of each stream among them.");

inline constexpr Metric kThroughRelay = kByWorker.Gauge(
    "takt_worker_through_relay", Unit::kNone, {},
    "1 if the worker is attached through the relay of its host, 0 if it is attached "
    "without it. Workers without --relay do not have it.");

// These describe the relay of a host.
inline constexpr Metric kRelayAttached =
    kByRelay.Gauge("takt_relay_attached", Unit::kNone, {},
                   "1 while the relay is connected to the coordinator, otherwise 0.");
inline constexpr Metric kRelayWorkers =
    kByRelay.Gauge("takt_relay_workers", Unit::kNone, {},
                   "Workers whose control streams go through the relay, or wait there.");
inline constexpr Metric kRelayMessages = kByRelay.Counter(
    "takt_relay_messages_total", Unit::kNone, {}, "Messages of workers to the coordinator.");
inline constexpr Metric kRelayFrames =
    kByRelay.Counter("takt_relay_frames_total", Unit::kNone, {},
                     "Frames in which the relay sent these messages to the coordinator.");

// Every program has these.
inline constexpr Metric kCertificateExpiry = kByAll.Gauge(
    "takt_certificate_expiry_timestamp_seconds", Unit::kUnixSeconds, {},
    "When the certificate that the program shows ends to be valid; not there without one.");
inline constexpr Metric kBuildInfo =
    kByAll.Gauge("takt_build_info", Unit::kNone, {"program", "version", "protocol_version"},
                 "1; its labels say which program and version this is.");

// The most ranks of a job whose workers serve the durations of instructions with every scrape.
inline constexpr int kMostRanksInDetail = 1024;

// Returns whether workers of a job of so many ranks serve the metric on demand only.
bool ServedOnDemand(const Metric& metric, int num_ranks);

// All metrics above, for documentation and for checks of dashboards.
std::span<const Metric* const> AllMetrics();
// Every label that one of them has.
std::span<const Label> AllLabels();

}  // namespace takt::metrics
