// SPDX-License-Identifier: Apache-2.0
// Joins ranks that are threads of one process, for tests. It has the rings of shm on the heap, so
// that the sanitizers see every byte.
#pragma once

#include <memory>

#include "worker/transport/transport.h"

namespace takt::testing {

class InprocHubState;

// Joins the ranks of one group. Thread-safe. Transports keep what they need of it and may outlive
// it.
class InprocHub {
 public:
  InprocHub();
  ~InprocHub();

  // Ignores options.secret and options.data_address.
  std::unique_ptr<transport::Transport> Connect(const transport::TransportOptions& options);

 private:
  std::shared_ptr<InprocHubState> state_;
};

}  // namespace takt::testing
