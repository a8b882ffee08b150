// SPDX-License-Identifier: Apache-2.0
// Makes the explorer of schedules a document that the page of `takt ui` shows in a frame.
#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace takt::cli {

struct Explorer {
  std::shared_ptr<const std::string> page;
  std::string policy;  // the value of the header Content-Security-Policy
};

// Makes the document when it is first asked for, since every family over many sizes takes a
// second. Thread-safe.
class LazyExplorer final {
 public:
  absl::StatusOr<Explorer> Get();

 private:
  absl::Mutex mutex_;
  Explorer explorer_ ABSL_GUARDED_BY(mutex_);  // without a page until it is made
};

}  // namespace takt::cli
