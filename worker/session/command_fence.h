// SPDX-License-Identifier: Apache-2.0
// Decides which coordinators a worker obeys. It is pure.
//
// A state of a coordinator has a random cluster id, and an epoch that rises with each coordinator
// that is started on it. The worker refuses a coordinator whose epoch is lower than the highest
// that it has seen in its cluster: that one is an earlier life of the coordinator. While the worker
// holds a rank, it also refuses coordinators of other clusters, because they do not know the job.
// Such a coordinator can only adopt the rank. An idle worker obeys any cluster.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "common/control/attachment.h"

namespace takt::session {

// One caller at a time.
class CommandFence final {
 public:
  // A coordinator has welcomed the worker on a new stream. holds: the worker holds a rank. Returns
  // why its commands are refused, nullopt if it is obeyed. A coordinator of a program before
  // clusters has an empty id and the epoch 0.
  std::optional<control::CommandsRefused> Welcome(const std::string& cluster_id, std::int64_t epoch,
                                                  bool holds);

  // Returns true if a command with this epoch is refused that comes on the stream of the last
  // welcome.
  bool Refuses(std::int64_t command_epoch) const;

  // Why the coordinator of the last welcome is refused; kUnknown: it is obeyed.
  control::RefusalCause refusal() const { return refusal_; }

  // The rank that the worker holds belongs to the coordinator of the last welcome from now on.
  // Returns false if that one is an earlier life of the coordinator.
  bool Adopt();

  // These belong to the cluster that the worker obeys. The epoch is the highest that it has seen
  // there.
  const std::string& cluster_id() const { return cluster_id_; }
  std::int64_t epoch() const;

 private:
  std::string cluster_id_, welcomed_id_;
  std::map<std::string, std::int64_t> epochs_;  // the highest that was seen, by cluster
  control::RefusalCause refusal_ = control::RefusalCause::kUnknown;  // kUnknown: it is obeyed
};

}  // namespace takt::session
