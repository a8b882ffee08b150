// SPDX-License-Identifier: Apache-2.0
// Holds the values behind the catalogue. A program makes one registry, hands it to every part that
// records, and serves `Text()`.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/metrics/catalog.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"

namespace takt::metrics {

// Thread-safe. A series is made at its first use and lives until Drop or the registry's end. Look
// it up once, not at every record. Label values are in the order of the metric's label names. A
// wrong number of them, or a metric of another kind, is a bug.
class Registry {
 public:
  Registry() = default;
  // Sets takt_build_info too. program: e.g. "takt-worker".
  explicit Registry(std::string_view program);

  prometheus::Counter& Counter(const Metric& metric, std::vector<std::string> labels = {});
  prometheus::Gauge& Gauge(const Metric& metric, std::vector<std::string> labels = {});
  prometheus::Histogram& Histogram(const Metric& metric, std::vector<std::string> labels = {});

  // Removes every series that has all of these labels. References to them must not be used any
  // more. It looks at all series; Remove finds one.
  using LabelValue = std::pair<std::string_view, std::string_view>;
  void Drop(std::initializer_list<LabelValue> labels);
  // Removes one series. Nothing happens if it is not there.
  void Remove(const Metric& metric, std::vector<std::string> labels);

  // True: Text leaves the metric out unless everything is asked for. The metric is recorded all the
  // same.
  void ServeOnDemand(const Metric& metric, bool on_demand);

  enum class Detail : std::uint8_t { kUsual, kAll };
  // Returns the exposition text, as /metrics shows it.
  std::string Text(Detail detail = Detail::kUsual) const;

 private:
  struct Series {
    void* instance = nullptr;
    std::function<void()> remove;
  };
  using SeriesKey = std::pair<const Metric*, std::vector<std::string>>;

  // `builder` is e.g. prometheus::BuildGauge. `arguments` go to the family's Add after the labels.
  template <class T, class Builder, class... Arguments>
  T& FindOrAdd(const Metric& metric, Kind kind, std::vector<std::string> labels, Builder builder,
               const Arguments&... arguments);

  const std::shared_ptr<prometheus::Registry> registry_ = std::make_shared<prometheus::Registry>();
  mutable absl::Mutex mutex_;
  std::set<std::string_view> on_demand_ ABSL_GUARDED_BY(mutex_);  // names of metrics
  std::map<SeriesKey, Series> series_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace takt::metrics
