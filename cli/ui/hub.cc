// SPDX-License-Identifier: Apache-2.0
#include "cli/ui/hub.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/base/message_json.h"

namespace takt::cli {
namespace {

std::string Event(const std::string& view, const std::string& kind, const char* name,
                  const std::string& json) {
  return absl::StrCat("data: {\"view\":", Dump(view), ",\"kind\":\"", kind, "\",\"", name,
                      "\":", json, "}\n\n");
}

}  // namespace

void Hub::Set(const std::string& view, const std::string& kind, std::string json) {
  const absl::MutexLock lock(&mutex_);
  Values& values = views_[view][kind];
  if (values.state == json) return;
  values.state = std::move(json);
  values.newest = ++numbers_;
  changed_.SignalAll();
}

void Hub::Append(const std::string& view, const std::string& kind, std::string json) {
  const absl::MutexLock lock(&mutex_);
  Values& values = views_[view][kind];
  values.newest = ++numbers_;
  values.bytes += json.size();
  values.entries.emplace_back(values.newest, std::move(json));
  while (values.entries.size() > limits_.entries || values.bytes > limits_.bytes) {
    values.bytes -= values.entries.front().second.size();
    values.entries.pop_front();
  }
  changed_.SignalAll();
}

void Hub::Forget(const std::string& view) {
  const absl::MutexLock lock(&mutex_);
  views_.erase(view);
}

void Hub::Close() {
  const absl::MutexLock lock(&mutex_);
  closed_ = true;
  changed_.SignalAll();
}

std::optional<std::string> Hub::Next(Viewer& viewer, absl::Duration longest) {
  const absl::Time deadline = absl::Now() + longest;
  const absl::MutexLock lock(&mutex_);
  while (true) {
    if (closed_) return std::nullopt;
    std::string text;
    for (const std::string& view : viewer.views) AddNews(viewer, view, text);
    if (!text.empty() || absl::Now() >= deadline) return text;
    changed_.WaitWithDeadline(&mutex_, deadline);
  }
}

void Hub::AddNews(Viewer& viewer, const std::string& view, std::string& text) const {
  const auto found = views_.find(view);
  if (found == views_.end()) return;
  for (const auto& [kind, values] : found->second) {
    std::int64_t& seen = viewer.seen[absl::StrCat(view, "\n", kind)];
    if (values.newest <= seen) continue;
    if (!values.state.empty()) {
      text += Event(view, kind, "value", values.state);
      seen = values.newest;
      continue;
    }
    auto entry = std::ranges::upper_bound(values.entries, seen, {},
                                          [](const auto& numbered) { return numbered.first; });
    std::string list;
    for (; entry != values.entries.end() && list.size() < limits_.bytes_of_frame; ++entry) {
      absl::StrAppend(&list, list.empty() ? "" : ",", entry->second);
      seen = entry->first;
    }
    if (list.empty()) {
      seen = values.newest;  // the newest entry was too large to be kept
    } else {
      text += Event(view, kind, "values", absl::StrCat("[", list, "]"));
    }
  }
}

}  // namespace takt::cli
