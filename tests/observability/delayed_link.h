// SPDX-License-Identifier: Apache-2.0
// Two hosts that a wire of a given length connects, on this machine: a network namespace each, and
// a thread that holds every packet back.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace takt::observability {

// Namespaces, wire and thread go with the object. Nothing of the machine's own network is touched.
class DelayedLink {
 public:
  // delay: one way, in both directions.  kUnavailable: this machine does not permit it, and what it
  // refuses.
  static absl::StatusOr<std::unique_ptr<DelayedLink>> Create(absl::Duration delay);
  virtual ~DelayedLink() = default;

  // Side 0 or 1: the file of its namespace (takt-elsewhere --net), its address.
  virtual std::string NetFile(int side) const = 0;
  static std::string Address(int side);
};

}  // namespace takt::observability
