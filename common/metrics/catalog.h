// SPDX-License-Identifier: Apache-2.0
// Declares every metric that a Takt program exposes, with name, unit, help and labels.
// docs/metrics.md is made from this. Metrics have base units only. No label grows without bound, so
// there is no label for steps or microbatches. The series of a job go some time after it has ended.
#pragma once

#include <span>

#include "common/metrics/metric.h"

namespace takt::metrics {

// These describe the job, as the coordinator knows it.
inline constexpr Metric kJobState = {"takt_job_state",
                                     Source::kCoordinator,
                                     Kind::kGauge,
                                     Unit::kNone,
                                     "1 for the state that the job is in, 0 for the others.",
                                     {"job", "state"}};
inline constexpr Metric kJobStep = {"takt_job_step",
                                    Source::kCoordinator,
                                    Kind::kGauge,
                                    Unit::kNone,
                                    "Last step committed; 0 before the first.",
                                    {"job"}};
inline constexpr Metric kJobTargetStep = {"takt_job_target_step",
                                          Source::kCoordinator,
                                          Kind::kGauge,
                                          Unit::kNone,
                                          "The step after which the job is done.",
                                          {"job"}};
inline constexpr Metric kJobEta = {"takt_job_eta_seconds",
                                   Source::kCoordinator,
                                   Kind::kGauge,
                                   Unit::kSeconds,
                                   "Time until the job is done if each step takes as long as the "
                                   "last one, or before the first as long as predicted.",
                                   {"job"}};
inline constexpr Metric kLastStepTimestamp = {
    "takt_last_step_timestamp_seconds",
    Source::kCoordinator,
    Kind::kGauge,
    Unit::kUnixSeconds,
    "When the last step was committed; before the first one of a generation, when it began to run.",
    {"job"}};
inline constexpr Metric kStepDuration = {"takt_step_duration_seconds",
                                         Source::kCoordinator,
                                         Kind::kHistogram,
                                         Unit::kSeconds,
                                         "Time from one step's end to the next one's.",
                                         {"job"}};
inline constexpr Metric kStepPredicted = {"takt_step_predicted_seconds",
                                          Source::kCoordinator,
                                          Kind::kGauge,
                                          Unit::kSeconds,
                                          "Time of a step that the simulator predicts.",
                                          {"job"}};
inline constexpr Metric kStepComponent = {
    "takt_step_component_seconds",
    Source::kCoordinator,
    Kind::kGauge,
    Unit::kSeconds,
    "Where the time of the newest explained step went, by cause: the components of a job add up to "
    "that step. One may be negative: docs/explain.md says when.",
    {"job", "component"}};
inline constexpr Metric kBubbleFraction = {
    "takt_bubble_fraction",
    Source::kCoordinator,
    Kind::kGauge,
    Unit::kRatio,
    "Share of the last step in which this pp rank did not compute.",
    {"job", "pp_rank"}};
inline constexpr Metric kBubblePredicted = {
    "takt_bubble_predicted_fraction",
    Source::kCoordinator,
    Kind::kGauge,
    Unit::kRatio,
    "Share of a step without compute that the simulator predicts.",
    {"job"}};
inline constexpr Metric kRankCompute = {
    "takt_rank_compute_seconds",
    Source::kCoordinator,
    Kind::kGauge,
    Unit::kSeconds,
    "Compute of this pp rank in the newest explained step: forward and backward, mean of its "
    "replicas.",
    {"job", "pp_rank"}};
inline constexpr Metric kRankComputePredicted = {"takt_rank_compute_predicted_seconds",
                                                 Source::kCoordinator,
                                                 Kind::kGauge,
                                                 Unit::kSeconds,
                                                 "The same, as the plan has it; 0: it has none.",
                                                 {"job", "pp_rank"}};
inline constexpr Metric kRankIdle = {
    "takt_rank_idle_seconds",
    Source::kCoordinator,
    Kind::kGauge,
    Unit::kSeconds,
    "Time without compute of this pp rank in the newest explained step, by what it waited for.",
    {"job", "pp_rank", "cause"}};
inline constexpr Metric kTokens = {"takt_tokens_total",
                                   Source::kCoordinator,
                                   Kind::kCounter,
                                   Unit::kTokens,
                                   "Tokens trained on by all ranks.",
                                   {"job"}};
inline constexpr Metric kLoss = {"takt_loss",
                                 Source::kCoordinator,
                                 Kind::kGauge,
                                 Unit::kNats,
                                 "Mean loss per scored token of the last step's global batch.",
                                 {"job"}};
inline constexpr Metric kValidationLoss = {"takt_validation_loss",
                                           Source::kCoordinator,
                                           Kind::kGauge,
                                           Unit::kNats,
                                           "Mean loss per scored token of the last validation.",
                                           {"job"}};
inline constexpr Metric kGradNorm = {
    "takt_grad_norm",
    Source::kCoordinator,
    Kind::kGauge,
    Unit::kNone,
    "Norm of the last step's gradient over all parameters, before clipping.",
    {"job"}};
inline constexpr Metric kLearningRate = {"takt_learning_rate",
                                         Source::kCoordinator,
                                         Kind::kGauge,
                                         Unit::kNone,
                                         "Learning rate of the last step.",
                                         {"job"}};
inline constexpr Metric kNonfiniteSteps = {
    "takt_nonfinite_steps_total",
    Source::kCoordinator,
    Kind::kCounter,
    Unit::kNone,
    "Steps whose loss or gradient norm is not a finite number.",
    {"job"}};
inline constexpr Metric kModelFlopsUtilization = {
    "takt_model_flops_utilization",
    Source::kCoordinator,
    Kind::kGauge,
    Unit::kRatio,
    "FLOPs of the model (nothing computed twice counts) in the last step, as a share of what the "
    "job's workers could have done at the f32 matmul rates that they measured; 0 for emulated "
    "models.",
    {"job"}};
inline constexpr Metric kMemoryPredicted = {
    "takt_memory_predicted_bytes",
    Source::kCoordinator,
    Kind::kGauge,
    Unit::kBytes,
    "Memory that the plan expects the worker of this pp rank to need.",
    {"job", "pp_rank"}};
inline constexpr Metric kCheckpoints = {
    "takt_checkpoints_total",
    Source::kCoordinator,
    Kind::kCounter,
    Unit::kNone,
    "Checkpoints of a job that became visible (done) or did not (failed).",
    {"job", "result"}};
inline constexpr Metric kCheckpointStep = {"takt_checkpoint_step",
                                           Source::kCoordinator,
                                           Kind::kGauge,
                                           Unit::kNone,
                                           "Step of the newest checkpoint that is visible, or that "
                                           "the job went on from; 0: there is none.",
                                           {"job"}};
inline constexpr Metric kCheckpointTimestamp = {
    "takt_checkpoint_timestamp_seconds",
    Source::kCoordinator,
    Kind::kGauge,
    Unit::kUnixSeconds,
    "When the newest checkpoint became visible; before the first, when the job began to run.",
    {"job"}};
inline constexpr Metric kCheckpointEvery = {
    "takt_checkpoint_every_steps",
    Source::kCoordinator,
    Kind::kGauge,
    Unit::kNone,
    "Steps from one checkpoint to the next, as asked for; 0: none, or only at the end.",
    {"job"}};
inline constexpr Metric kCheckpointDuration = {
    "takt_checkpoint_duration_seconds",
    Source::kCoordinator,
    Kind::kHistogram,
    Unit::kSeconds,
    "Of the slowest rank: snapshot, for which training pauses, and write, beside it.",
    {"job", "phase"}};
inline constexpr Metric kRecoveries = {"takt_job_recoveries_total",
                                       Source::kCoordinator,
                                       Kind::kCounter,
                                       Unit::kNone,
                                       "Faults after which the job went on by itself.",
                                       {"job"}};

// These describe the cluster, as the coordinator knows it.
inline constexpr Metric kJobs = {"takt_jobs", Source::kCoordinator, Kind::kGauge,
                                 Unit::kNone, "Jobs by state.",     {"state"}};
inline constexpr Metric kWorkers = {
    "takt_workers",
    Source::kCoordinator,
    Kind::kGauge,
    Unit::kNone,
    "Workers by state: idle, busy, lost (but not those that left as asked), and drained beside "
    "them.",
    {"state"}};
inline constexpr Metric kWorkerConnected = {"takt_worker_connected",
                                            Source::kCoordinator,
                                            Kind::kGauge,
                                            Unit::kNone,
                                            "1 while the worker is attached, 0 from its loss until "
                                            "it is forgotten an hour later; not there "
                                            "for one that left as asked or is drained and away.",
                                            {"worker"}};
inline constexpr Metric kWorkerLosses = {
    "takt_worker_losses_total",
    Source::kCoordinator,
    Kind::kCounter,
    Unit::kNone,
    "Workers whose stream ended or whose lease ran out, those that left as asked not counted.",
    {}};
inline constexpr Metric kRecoveryDuration = {
    "takt_recovery_duration_seconds",
    Source::kCoordinator,
    Kind::kHistogram,
    Unit::kSeconds,
    "From a fault until the job trains again: stop (its ranks let go), queue (its gang is there), "
    "start (planned, loaded, connected).",
    {"phase"}};

// A worker measures these of the rank that it holds.
inline constexpr Metric kRankInfo = {
    "takt_rank_info",
    Source::kWorker,
    Kind::kGauge,
    Unit::kNone,
    "1; its labels say which rank of which job this worker holds, or held last.",
    {"job", "pp_rank", "dp_rank"}};
inline constexpr Metric kOpDuration = {
    "takt_op_duration_seconds",
    Source::kWorker,
    Kind::kHistogram,
    Unit::kSeconds,
    "Time of one instruction from when all that it needs of its own rank is there to its end; of "
    "messages and sums, waiting for other ranks is part of it. A W of several microbatches counts "
    "as so many of equal length.",
    {"job", "stage", "kind"}};
inline constexpr Metric kP2pBytes = {
    "takt_p2p_bytes_total",
    Source::kWorker,
    Kind::kCounter,
    Unit::kBytes,
    "Activation and gradient bytes sent to neighbours of the pipeline.",
    {"job", "pp_rank", "direction"}};
inline constexpr Metric kP2pWait = {
    "takt_p2p_wait_seconds_total",
    Source::kWorker,
    Kind::kCounter,
    Unit::kSeconds,
    "Time in which nothing was computed because a message of that direction had not come, or not "
    "gone.",
    {"job", "pp_rank", "direction"}};
inline constexpr Metric kInFlight = {
    "takt_in_flight_microbatches",
    Source::kWorker,
    Kind::kGauge,
    Unit::kNone,
    "Most microbatches whose activations this stage holds at one time in a step.",
    {"job", "stage"}};

// These describe the worker's process.
inline constexpr Metric kMemory = {
    "takt_memory_bytes",
    Source::kWorker,
    Kind::kGauge,
    Unit::kBytes,
    "Memory by what it is for: what each kind has allocated, and as `process` what the process has "
    "resident beyond them.",
    {"kind"}};
inline constexpr Metric kMemoryLimit = {
    "takt_memory_limit_bytes",
    Source::kWorker,
    Kind::kGauge,
    Unit::kBytes,
    "Memory that the process may use: of its control group or, if less, of the machine.",
    {}};

// Every program has these.
inline constexpr Metric kCertificateExpiry = {
    "takt_certificate_expiry_timestamp_seconds",
    Source::kBoth,
    Kind::kGauge,
    Unit::kUnixSeconds,
    "When the certificate that the program shows ends to be valid; not there without one.",
    {}};
inline constexpr Metric kBuildInfo = {"takt_build_info",
                                      Source::kBoth,
                                      Kind::kGauge,
                                      Unit::kNone,
                                      "1; its labels say which program and version this is.",
                                      {"program", "version", "protocol_version"}};

// All metrics above, for documentation and for checks of dashboards.
std::span<const Metric* const> AllMetrics();
// Every label that one of them has.
std::span<const Label> AllLabels();

}  // namespace takt::metrics
