// SPDX-License-Identifier: Apache-2.0
#include "common/metrics/registry.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "common/base/version.h"
#include "prometheus/text_serializer.h"

namespace takt::metrics {

Registry::Registry(std::string_view program) {
  Gauge(kBuildInfo, {std::string(program), kTaktVersion, std::to_string(kProtocolVersion)}).Set(1);
}

template <class T, class Builder, class... Arguments>
T& Registry::FindOrAdd(const Metric& metric, Kind kind, std::vector<std::string> labels,
                       Builder builder, const Arguments&... arguments) {
  TAKT_CHECK(metric.kind == kind);
  TAKT_CHECK(static_cast<int>(labels.size()) == metric.num_labels());
  const SeriesKey key(&metric, std::move(labels));
  absl::MutexLock lock(&mutex_);
  Series& series = series_[key];
  if (series.instance == nullptr) {
    TAKT_CHECK(std::ranges::count(AllMetrics(), &metric) == 1);
    prometheus::Labels named;
    for (std::size_t i = 0; i < key.second.size(); ++i)
      named[std::string(metric.label_names[i])] = key.second[i];
    // A family is made once. Later calls return the same one.
    prometheus::Family<T>& family = builder()
                                        .Name(std::string(metric.name))
                                        .Help(std::string(metric.help))
                                        .Register(*registry_);
    T* const instance = &family.Add(named, arguments...);
    series.instance = instance;
    series.remove = [&family, instance] { family.Remove(instance); };
  }
  return *static_cast<T*>(series.instance);
}

prometheus::Counter& Registry::Counter(const Metric& metric, std::vector<std::string> labels) {
  return FindOrAdd<prometheus::Counter>(metric, Kind::kCounter, std::move(labels),
                                        prometheus::BuildCounter);
}

prometheus::Gauge& Registry::Gauge(const Metric& metric, std::vector<std::string> labels) {
  return FindOrAdd<prometheus::Gauge>(metric, Kind::kGauge, std::move(labels),
                                      prometheus::BuildGauge);
}

prometheus::Histogram& Registry::Histogram(const Metric& metric, std::vector<std::string> labels) {
  const auto bounds = HistogramBounds();
  return FindOrAdd<prometheus::Histogram>(metric, Kind::kHistogram, std::move(labels),
                                          prometheus::BuildHistogram,
                                          std::vector<double>(bounds.begin(), bounds.end()));
}

void Registry::Drop(std::initializer_list<LabelValue> labels) {
  absl::MutexLock lock(&mutex_);
  std::erase_if(series_, [&](const auto& entry) {
    const SeriesKey& key = entry.first;
    const bool drop = std::ranges::all_of(labels, [&](const LabelValue& label) {
      for (std::size_t i = 0; i < key.second.size(); ++i) {
        if (key.first->label_names[i] == label.first) return key.second[i] == label.second;
      }
      return false;
    });
    if (drop) entry.second.remove();
    return drop;
  });
}

void Registry::Remove(const Metric& metric, std::vector<std::string> labels) {
  absl::MutexLock lock(&mutex_);
  const auto series = series_.find({&metric, std::move(labels)});
  if (series == series_.end()) return;
  series->second.remove();
  series_.erase(series);
}

void Registry::ServeOnDemand(const Metric& metric, bool on_demand) {
  absl::MutexLock lock(&mutex_);
  if (on_demand) {
    on_demand_.insert(metric.name);
  } else {
    on_demand_.erase(metric.name);
  }
}

std::string Registry::Text(Detail detail) const {
  std::vector<prometheus::MetricFamily> families = registry_->Collect();
  if (detail == Detail::kUsual) {
    absl::MutexLock lock(&mutex_);
    std::erase_if(families, [&](const prometheus::MetricFamily& family) {
      mutex_.AssertReaderHeld();
      return on_demand_.contains(family.name);
    });
  }
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace takt::metrics
