// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "worker/transport/transport.h"

namespace takt::session {

// A rendezvous whose waits can be ended. Thread-safe.
class AbortableRendezvous : public transport::Rendezvous {
 public:
  // Makes every call in progress, and every later one, return kAborted soon. Calling it again
  // changes nothing.
  virtual void Abort() = 0;
};

}  // namespace takt::session
