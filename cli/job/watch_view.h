// SPDX-License-Identifier: Apache-2.0
// Makes the picture that `takt watch` shows on a terminal from the state of one job. It is pure;
// cli/terminal/live_screen.h draws on the terminal.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/terminal/loss_curve.h"
#include "takt/v1/cluster_service.pb.h"
#include "takt/v1/job.pb.h"

namespace takt::cli {

struct WatchState {
  v1::Job job;
  std::optional<v1::StepReport> step;  // the newest
  double smooth_step_seconds = 0;      // 0: no step yet
  std::optional<double> validation_loss;
  LossCurve losses;
  std::optional<v1::StepSplit> split;  // the newest that the coordinator has worked out
  std::vector<v1::Worker> workers;     // of the cluster; empty: not known
  std::string notice;                  // a line for the user, such as that the coordinator is away

  void TakeStep(const v1::StepReport& report);
};

struct Screen {
  int columns = 80, rows = 24;
  bool unicode = false, color = false;
  bool operator==(const Screen&) const = default;
};

// Returns at most screen.rows lines of at most screen.columns characters. If not everything fits,
// it leaves out, in this order: the loss curve, all lines of the split except one, and the stages
// that do not fit.
std::vector<std::string> RenderWatch(const WatchState& state, const Screen& screen);

}  // namespace takt::cli
