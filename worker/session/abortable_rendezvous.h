// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "worker/transport/transport.h"

namespace takt::session {

// Thread-safe.
class AbortableRendezvous : public transport::Rendezvous {
 public:
  // Every call in progress and every later one returns kAborted soon. Idempotent.
  virtual void Abort() = 0;
};

}  // namespace takt::session
