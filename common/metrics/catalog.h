// SPDX-License-Identifier: Apache-2.0
// Every metric that a Takt program exposes: name, unit, help and labels, declared here and nowhere
// else. Base units only; no label grows without bound (no step, no microbatch); series of a job go
// when the job does.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace takt::metrics {

enum class Kind : std::uint8_t { kCounter, kGauge, kHistogram };
enum class Unit : std::uint8_t { kNone, kSeconds, kBytes, kTokens, kNats, kRatio, kUnixSeconds };

struct Metric {
  std::string_view name;
  Kind kind = Kind::kGauge;
  Unit unit = Unit::kNone;
  std::string_view help;
  std::array<std::string_view, 4> label_names = {};  // unused ones empty, at the end

  int num_labels() const;
};

// What a worker records about the job whose rank it is.
inline constexpr Metric kOpDuration = {
    "takt_op_duration_seconds",
    Kind::kHistogram,
    Unit::kSeconds,
    "Time of one instruction from start to end, waits inside it included.",
    {"job", "stage", "kind"}};
inline constexpr Metric kStepDuration = {"takt_step_duration_seconds",
                                         Kind::kHistogram,
                                         Unit::kSeconds,
                                         "Time from one step's end to the next one's.",
                                         {"job"}};
inline constexpr Metric kBubbleFraction = {
    "takt_bubble_fraction",
    Kind::kGauge,
    Unit::kRatio,
    "Share of the last step in which this pp rank did not compute.",
    {"job", "pp_rank"}};
inline constexpr Metric kP2pBytes = {
    "takt_p2p_bytes_total",
    Kind::kCounter,
    Unit::kBytes,
    "Activation and gradient bytes sent to neighbours of the pipeline.",
    {"job", "direction"}};
inline constexpr Metric kLastStepTimestamp = {"takt_last_step_timestamp_seconds",
                                              Kind::kGauge,
                                              Unit::kUnixSeconds,
                                              "When the last step ended.",
                                              {"job"}};
// Rank 0 of a job alone knows these.
inline constexpr Metric kLoss = {"takt_loss",
                                 Kind::kGauge,
                                 Unit::kNats,
                                 "Mean loss per scored token of the last step's global batch.",
                                 {"job"}};
inline constexpr Metric kGradNorm = {
    "takt_grad_norm",
    Kind::kGauge,
    Unit::kNone,
    "Norm of the last step's gradient over all parameters, before clipping.",
    {"job"}};
inline constexpr Metric kLearningRate = {
    "takt_learning_rate", Kind::kGauge, Unit::kNone, "Learning rate of the last step.", {"job"}};
inline constexpr Metric kTokens = {
    "takt_tokens_total", Kind::kCounter, Unit::kTokens, "Tokens trained on by all ranks.", {"job"}};

// What the coordinator knows.
inline constexpr Metric kBubblePredicted = {
    "takt_bubble_predicted_fraction",
    Kind::kGauge,
    Unit::kRatio,
    "Share of a step without compute that the simulator predicts.",
    {"job"}};
inline constexpr Metric kStepPredicted = {"takt_step_predicted_seconds",
                                          Kind::kGauge,
                                          Unit::kSeconds,
                                          "Time of a step that the simulator predicts.",
                                          {"job"}};
inline constexpr Metric kWorkers = {"takt_workers",
                                    Kind::kGauge,
                                    Unit::kNone,
                                    "Workers by state: idle, busy, lost, and drained beside them.",
                                    {"state"}};
inline constexpr Metric kJobs = {
    "takt_jobs", Kind::kGauge, Unit::kNone, "Jobs by state.", {"state"}};
inline constexpr Metric kJobStep = {
    "takt_job_step", Kind::kGauge, Unit::kNone, "Last step committed.", {"job"}};
inline constexpr Metric kCheckpoints = {
    "takt_checkpoints_total",
    Kind::kCounter,
    Unit::kNone,
    "Checkpoints of a job that became visible (done) or did not (failed).",
    {"job", "result"}};
inline constexpr Metric kCheckpointStep = {"takt_checkpoint_step",
                                           Kind::kGauge,
                                           Unit::kNone,
                                           "Step of the newest checkpoint that is visible.",
                                           {"job"}};
inline constexpr Metric kCheckpointDuration = {
    "takt_checkpoint_duration_seconds",
    Kind::kHistogram,
    Unit::kSeconds,
    "Of the slowest rank: snapshot, for which training pauses, and write, beside it.",
    {"job", "phase"}};
inline constexpr Metric kRecoveryDuration = {
    "takt_recovery_duration_seconds",
    Kind::kHistogram,
    Unit::kSeconds,
    "From a fault until the job trains again: stop (its ranks let go), queue (its gang is there), "
    "start (planned, loaded, connected).",
    {"phase"}};

// Of every program.
inline constexpr Metric kBuildInfo = {"takt_build_info",
                                      Kind::kGauge,
                                      Unit::kNone,
                                      "1; its labels say which program and version this is.",
                                      {"program", "version", "protocol_version"}};

// All of the above, for documentation and for checks of dashboards.
std::span<const Metric* const> AllMetrics();

// Upper bounds of a histogram's buckets, in its unit: doubling from 100 microseconds to 105
// seconds.
std::span<const double> HistogramBounds();

std::string_view ToString(Kind kind);
std::string_view ToString(Unit unit);

}  // namespace takt::metrics
