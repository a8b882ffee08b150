// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads of one process, for tests: the rings of shm on the heap, so that the
// sanitizers see every byte.
#pragma once

#include <memory>

#include "worker/transport/transport.h"

namespace takt::transport {

class InprocHubState;

// Where the ranks of one group meet. Thread-safe; transports keep what they need of it and may
// outlive it.
class InprocHub {
 public:
  InprocHub();
  ~InprocHub();

  // options.secret and data_address are not used.
  std::unique_ptr<Transport> Connect(const TransportOptions& options);

 private:
  std::shared_ptr<InprocHubState> state_;
};

}  // namespace takt::transport
