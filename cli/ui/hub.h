// SPDX-License-Identifier: Apache-2.0
// Hands what the sources of `takt ui` find out to all viewers, each at its own speed.
//
// What is shown together is a view: "cluster", "job:NAME". A view has kinds of values. A state has
// one value, the newest. A list has entries, of which the newest are kept. The text of a value is
// made once, however many viewers there are. A viewer that is slow misses states that were
// replaced meanwhile, and entries that are not kept any more, and nothing waits for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace takt::cli {

struct HubLimits {
  std::size_t entries = 20'000;             // kept of a list
  std::size_t bytes = 8u << 20;             // of all entries of a list
  std::size_t bytes_of_frame = 256u << 10;  // about how many bytes of a list go at once
};

// Thread-safe.
class Hub final {
 public:
  explicit Hub(HubLimits limits = {}) : limits_(limits) {}

  // Replaces a state. json: one JSON value without newlines. The same value again is no news.
  void Set(const std::string& view, const std::string& kind, std::string json);
  // Adds an entry to a list.
  void Append(const std::string& view, const std::string& kind, std::string json);
  // Forgets all of a view.
  void Forget(const std::string& view);
  // Wakes all viewers for good.
  void Close();

  // Keeps what one viewer was sent. It begins with all that is kept.
  struct Viewer {
    std::vector<std::string> views;
    std::map<std::string, std::int64_t> seen = {};  // by view and kind, the newest number sent
  };

  // Waits until there is news for the viewer, at most for `longest`. Returns server-sent events,
  // each of which holds one object: {"view", "kind", "value"} of a state and {"view", "kind",
  // "values"} of a list. Empty: there is no news. Unset: the hub is closed. One call at a time for
  // each viewer.
  std::optional<std::string> Next(Viewer& viewer, absl::Duration longest);

 private:
  struct Values {
    std::int64_t newest = 0;                                   // the number of the newest value
    std::string state;                                         // empty: this is a list
    std::deque<std::pair<std::int64_t, std::string>> entries;  // with their numbers
    std::size_t bytes = 0;
  };

  // Adds the news of one view to `text`.
  void AddNews(Viewer& viewer, const std::string& view, std::string& text) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const HubLimits limits_;
  mutable absl::Mutex mutex_;
  absl::CondVar changed_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::int64_t numbers_ ABSL_GUARDED_BY(mutex_) = 0;  // counts values; never goes back
  std::map<std::string, std::map<std::string, Values>> views_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace takt::cli
