// SPDX-License-Identifier: Apache-2.0
// Prints the steps of a job on stdout (a JSON object for each, or a line of text now and then), and
// its state and a progress bar on stderr.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cli/base/context.h"
#include "common/base/clock.h"
#include "takt/v1/job.pb.h"

namespace takt::cli {

// One caller at a time. It draws the bar only on a TTY, and the destructor erases it.
class StepPrinter final {
 public:
  StepPrinter(const Context& context, const Clock& clock);
  ~StepPrinter();

  // Takes a new state or reason of the job.
  void OnJob(const v1::Job& job);
  // Takes a step. Returns false if stdout is closed.
  bool OnStep(const v1::StepReport& step);
  // Prints one line on stderr, without damage to the bar.
  void Say(std::string_view line);
  // Prints how the job ended.
  void OnEnd(const v1::Job& job);

 private:
  bool LineIsDue(const v1::StepReport& step);
  void DrawBar(const v1::StepReport& step);
  void WipeBar();

  const Context& context_;
  const Clock& clock_;
  v1::Job job_;
  std::string last_said_;
  std::optional<std::int64_t> last_line_nanos_, last_bar_nanos_;
  double smooth_step_seconds_ = 0;  // for the ETA; 0: no step yet
  bool bar_is_drawn_ = false;
};

// Returns the time of a step smoothed over about ten steps. smooth: of those before; 0: no step
// yet.
double Smoothed(double smooth, double step_seconds);

// "step 12/200  loss 2.3456  grad_norm 1.23  lr 0.0003  12.3k tokens/s  0.81 s  bubble 27.3% [30 25
// 24 28]"
std::string StepLine(const v1::StepReport& step, std::int64_t steps);

}  // namespace takt::cli
