// SPDX-License-Identifier: Apache-2.0
#include "common/profile/profile.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <initializer_list>

#include "common/base/bounded_text.h"

namespace takt::profile {
namespace {

// A name that a worker tells becomes part of what is stored.
constexpr std::size_t kMostNameBytes = 100;

// Returns how far apart two positive values are: 0 if they are equal, 1 if one is e times the
// other.
double Distance(double a, double b) { return std::abs(std::log(a / b)); }

// Returns how far apart the conditions are. Threads count most, because work is divided by them.
double Distance(const Conditions& a, const Conditions& b) {
  return 2 * Distance(std::max(a.threads, 1), std::max(b.threads, 1)) +
         Distance(a.ranks_per_host, b.ranks_per_host);
}

double Mixed(double old_value, double new_value, double weight) {
  return old_value + weight * (new_value - old_value);
}

Passes Mixed(const Passes& old_value, const Passes& new_value, double weight) {
  return {.forward = Mixed(old_value.forward, new_value.forward, weight),
          .input_grad = Mixed(old_value.input_grad, new_value.input_grad, weight),
          .weight_grad = Mixed(old_value.weight_grad, new_value.weight_grad, weight)};
}

// Returns the time of `work` at the rate of what was measured.
double Scaled(double seconds, double measured_work, double work) {
  return measured_work > 0 ? seconds * work / measured_work : seconds;
}

// Work that is spread over more threads takes less time, and the planner knows no better than that
// it takes as much less.
Passes Scaled(const LayerSample& sample, const Passes& work, double threads_ratio) {
  return {
      .forward = Scaled(sample.seconds.forward, sample.work.forward, work.forward) * threads_ratio,
      .input_grad = Scaled(sample.seconds.input_grad, sample.work.input_grad, work.input_grad) *
                    threads_ratio,
      .weight_grad = Scaled(sample.seconds.weight_grad, sample.work.weight_grad, work.weight_grad) *
                     threads_ratio};
}

// Returns whether the rate of one says something about the other.
bool AreAlike(const LayerShape& a, const LayerShape& b) {
  return a.kind == b.kind && a.spread == b.spread && a.products == b.products &&
         a.activations == b.activations && a.fp8 == b.fp8;
}

bool AreAmounts(std::initializer_list<double> values) {
  return std::ranges::all_of(values,
                             [](double value) { return value >= 0 && value <= kMostAmount; });
}

bool AreAmounts(const Passes& passes) {
  return AreAmounts({passes.forward, passes.input_grad, passes.weight_grad});
}

// Returns the entry of a map that is nearest to what is wanted, or null.
// distance(key, value) gives nullopt for those that do not count.
template <class Map, class DistanceTo>
const typename Map::value_type* Nearest(const Map& map, DistanceTo distance) {
  const typename Map::value_type* nearest = nullptr;
  double least = 0;
  for (const auto& entry : map) {
    const std::optional<double> here = distance(entry.first, entry.second);
    if (!here || (nearest != nullptr && *here >= least)) continue;
    nearest = &entry;
    least = *here;
  }
  return nearest;
}

// Returns the value of the nearest conditions on the same machine.
template <class Value>
std::optional<Value> OfNearestConditions(const std::map<Conditions, Value>& values,
                                         const Conditions& conditions) {
  const auto* nearest =
      Nearest(values, [&](const Conditions& other, const Value&) -> std::optional<double> {
        if (other.machine != conditions.machine) return std::nullopt;
        return Distance(conditions, other);
      });
  return nearest == nullptr ? std::nullopt : std::optional<Value>(nearest->second);
}

// Returns the power of two that stands for the size of a message.
int Log2(std::int64_t bytes) {
  return static_cast<int>(
      std::bit_width(static_cast<std::uint64_t>(std::max<std::int64_t>(bytes, 0))));
}

template <class Key>
void AddTo(std::map<Key, MessageSample>& known, const Key& key, const MessageSample& sample,
           double weight) {
  if (!AreAmounts({sample.seconds})) return;
  const auto [it, is_new] = known.try_emplace(key, sample);
  if (is_new) return;
  it->second = {.bytes = sample.bytes,
                .seconds = Mixed(it->second.seconds, sample.seconds, weight)};
}

}  // namespace

std::string_view Name(Origin origin) {
  switch (origin) {
    case Origin::kMeasured:
      return "measured";
    case Origin::kInterpolated:
      return "interpolated";
    case Origin::kGuessed:
      return "guessed";
  }
  return "unknown";
}

MessageKey KeyOfMessage(bool same_host, std::int64_t bytes) {
  return {.same_host = same_host, .log2_bytes = Log2(bytes)};
}

MeetingKey KeyOfMeeting(bool same_host, int num_ranks, std::int64_t bytes) {
  return {.same_host = same_host, .num_ranks = num_ranks, .log2_bytes = Log2(bytes)};
}

LinkKey KeyOfLink(std::string_view from, std::string_view to, std::int64_t bytes) {
  return {.from = LinkName(from), .to = LinkName(to), .log2_bytes = Log2(bytes)};
}

std::string LinkName(std::string_view host) {
  return std::string(FirstBytes(host, kMostNameBytes));
}

void Profile::AddLayer(const LayerKey& key, const LayerSample& sample, double weight) {
  if (!AreAmounts(sample.work) || !AreAmounts(sample.seconds)) return;
  const auto [it, is_new] = layers_.try_emplace(key, sample);
  if (is_new) return;
  it->second = {.work = sample.work, .seconds = Mixed(it->second.seconds, sample.seconds, weight)};
}

void Profile::AddRank(const Conditions& conditions, const RankSample& sample, double weight) {
  if (!AreAmounts({sample.update_seconds, sample.dispatch_seconds})) return;
  const auto [it, is_new] = ranks_.try_emplace(conditions, sample);
  RankSample& known = it->second;
  if (is_new) return;
  known.update_seconds = Mixed(known.update_seconds, sample.update_seconds, weight);
  known.dispatch_seconds = Mixed(known.dispatch_seconds, sample.dispatch_seconds, weight);
}

void Profile::AddMessage(const MessageKey& key, const MessageSample& sample, double weight) {
  AddTo(messages_, key, sample, weight);
}

void Profile::AddLink(const LinkKey& key, const MessageSample& sample, double weight) {
  AddTo(links_, key, sample, weight);
}

void Profile::AddSum(const SumKey& key, double seconds_per_byte, double weight) {
  if (!AreAmounts({seconds_per_byte})) return;
  const auto [it, is_new] = sums_.try_emplace(key, seconds_per_byte);
  if (!is_new) it->second = Mixed(it->second, seconds_per_byte, weight);
}

void Profile::AddMeeting(const MeetingKey& key, const MessageSample& sample, double weight) {
  AddTo(meetings_, key, sample, weight);
}

void Profile::AddPair(const Conditions& conditions, double ratio, double weight) {
  if (!AreAmounts({ratio})) return;
  const auto [it, is_new] = pairs_.try_emplace(conditions, ratio);
  if (!is_new) it->second = Mixed(it->second, ratio, weight);
}

void Profile::AddSnapshot(const Conditions& conditions, double seconds_per_byte, double weight) {
  if (!AreAmounts({seconds_per_byte})) return;
  const auto [it, is_new] = snapshots_.try_emplace(conditions, seconds_per_byte);
  if (!is_new) it->second = Mixed(it->second, seconds_per_byte, weight);
}

std::optional<Profile::Found> Profile::FindLayer(const LayerKey& key, const Passes& work) const {
  const LayerShape& shape = key.first;
  const Conditions& conditions = key.second;
  if (const auto exact = layers_.find(key); exact != layers_.end())
    return Found{.seconds = exact->second.seconds};
  const auto* nearest = Nearest(
      layers_, [&](const LayerKey& other, const LayerSample& sample) -> std::optional<double> {
        if (!AreAlike(shape, other.first) || conditions.machine != other.second.machine)
          return std::nullopt;
        // A layer that is recomputed in another way does more work in I alone.
        const double recompute = shape.recompute == other.first.recompute ? 0 : 0.1;
        return Distance(sample.work.sum(), work.sum()) + recompute +
               Distance(conditions, other.second);
      });
  if (nearest == nullptr) return std::nullopt;
  const double threads = std::max(nearest->first.second.threads, 1);
  return Found{.seconds = Scaled(nearest->second, work, threads / std::max(conditions.threads, 1)),
               .origin = Origin::kInterpolated};
}

std::optional<RankSample> Profile::FindRank(const Conditions& conditions) const {
  return OfNearestConditions(ranks_, conditions);
}

std::optional<double> Profile::FindPair(const Conditions& conditions) const {
  return OfNearestConditions(pairs_, conditions);
}

std::optional<double> Profile::FindSnapshot(const Conditions& conditions) const {
  return OfNearestConditions(snapshots_, conditions);
}

std::optional<double> Profile::FindMessage(bool same_host, std::int64_t bytes) const {
  const MessageKey wanted = KeyOfMessage(same_host, bytes);
  const auto* nearest =
      Nearest(messages_, [&](const MessageKey& key, const MessageSample&) -> std::optional<double> {
        if (key.same_host != same_host) return std::nullopt;
        return std::abs(key.log2_bytes - wanted.log2_bytes);
      });
  if (nearest == nullptr) return std::nullopt;
  const MessageSample& sample = nearest->second;
  // A message has a fixed time too: a smaller one is not thought to be faster.
  return Scaled(sample.seconds, static_cast<double>(sample.bytes),
                static_cast<double>(std::max(bytes, sample.bytes)));
}

std::optional<double> Profile::FindMeeting(bool same_host, int num_ranks,
                                           std::int64_t bytes) const {
  const MeetingKey wanted = KeyOfMeeting(same_host, num_ranks, bytes);
  const auto* nearest =
      Nearest(meetings_, [&](const MeetingKey& key, const MessageSample&) -> std::optional<double> {
        if (key.same_host != same_host) return std::nullopt;
        return std::abs(key.log2_bytes - wanted.log2_bytes) +
               Distance(key.num_ranks, wanted.num_ranks);
      });
  if (nearest == nullptr) return std::nullopt;
  const MessageSample& sample = nearest->second;
  // A smaller meeting is not taken to be faster, as a smaller message is not. Each rank waits for
  // all others.
  return Scaled(sample.seconds, static_cast<double>(sample.bytes),
                static_cast<double>(std::max(bytes, sample.bytes))) *
         (num_ranks - 1) / std::max(nearest->first.num_ranks - 1, 1);
}

std::optional<double> Profile::FindSlowness(std::string_view from, std::string_view to,
                                            std::int64_t bytes) const {
  const LinkKey key = KeyOfLink(from, to, 0);
  const MessageSample* nearest = nullptr;
  int least = 0;
  for (auto it = links_.lower_bound(key); it != links_.end(); ++it) {
    if (it->first.from != key.from || it->first.to != key.to) break;
    const int here = std::abs(it->first.log2_bytes - Log2(bytes));
    if (nearest != nullptr && here >= least) continue;
    nearest = &it->second;
    least = here;
  }
  if (nearest == nullptr) return std::nullopt;
  const std::optional<double> usual = FindMessage(/*same_host=*/false, nearest->bytes);
  if (!usual || *usual <= 0) return std::nullopt;
  return nearest->seconds / *usual;
}

std::optional<double> Profile::FindSum(const SumKey& key) const {
  const auto* nearest = Nearest(sums_, [&](const SumKey& other, double) -> std::optional<double> {
    if (other.same_host != key.same_host) return std::nullopt;
    return Distance(other.num_ranks, key.num_ranks);
  });
  if (nearest == nullptr) return std::nullopt;
  // Each further rank has its part added too.
  return nearest->second * (key.num_ranks - 1) / std::max(nearest->first.num_ranks - 1, 1);
}

}  // namespace takt::profile
