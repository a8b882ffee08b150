// SPDX-License-Identifier: Apache-2.0
// Asks the coordinator for what views show, and puts it into the hub.
//
// View                Kinds of values
// "cluster"           workers, jobs, held (states)
// "job:NAME"          job, split (states), steps (list)
// "timeline:NAME"     overview (state; trace::OverviewData)
// "logs:NAME"         lines (list)
// Each view also has the state `problem`: {"text": "..."} when the coordinator refuses or does not
// answer, else null.
#pragma once

#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "cli/client/client.h"
#include "cli/ui/hub.h"
#include "cli/ui/timelines.h"

namespace takt::cli {

// Says what a view is of, and which job it names (empty for the cluster).
struct ViewName {
  std::string what, job;
};
// Returns nothing if there is no such view.
std::optional<ViewName> ParseView(std::string_view view);

// Borrows all. Thread-safe.
class Sources final {
 public:
  Sources(Client& client, Hub& hub, Timelines& timelines)
      : client_(client), hub_(hub), timelines_(timelines) {}

  // Keeps a view up to date until `stop` is requested, and then forgets it. view: one that
  // ParseView knows.
  void Follow(const std::string& view, const std::stop_token& stop);

 private:
  void FollowCluster(const std::string& view, const std::stop_token& stop);
  void FollowSteps(const std::string& view, const std::string& job, const std::stop_token& stop);
  void FollowTimeline(const std::string& view, const std::string& job, const std::stop_token& stop);
  void FollowLogs(const std::string& view, const std::string& job, const std::stop_token& stop);

  absl::Status UpdateCluster(const std::string& view);
  // Returns the id of the job when it has ended.
  absl::StatusOr<std::string> WatchSteps(const std::string& view, const std::string& job,
                                         Client::StreamStop& stop);
  // Waits until there is a job of that name with another id. Returns false if `stop` is requested
  // before.
  bool AwaitNextJob(const std::string& job, const std::string& id, const std::stop_token& stop);
  void SetProblem(const std::string& view, const absl::Status& status);

  Client& client_;
  Hub& hub_;
  Timelines& timelines_;
};

}  // namespace takt::cli
