// SPDX-License-Identifier: Apache-2.0
// Says how long layers, messages, updates and snapshots took on workers, and predicts how long
// others that were not measured would take.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "common/profile/layer_shape.h"

namespace takt::profile {

// Says where a time comes from.
enum class Origin : std::uint8_t {
  kMeasured,      // this layer under these conditions
  kInterpolated,  // from the nearest layer of its kind, by the work of both
  kGuessed,       // from FLOPs and a rate of products
};

// "measured", "interpolated", "guessed".
std::string_view Name(Origin origin);

struct LayerSample {
  Passes work;  // WorkOf the layer
  Passes seconds;
};

// The work of a rank beside its layers.
struct RankSample {
  double update_seconds = 0;    // norm and optimizer, for one parameter
  double dispatch_seconds = 0;  // between two instructions of the compute lane
};

// Messages between two ranks; a size stands for all of about as many bytes.
struct MessageKey {
  bool same_host = true;
  int log2_bytes = 0;

  auto operator<=>(const MessageKey&) const = default;
};

struct MessageSample {
  std::int64_t bytes = 0;
  double seconds = 0;  // from when both ends were ready to the end
};

// Messages from one host to another one.
struct LinkKey {
  std::string from, to;  // LinkName of both
  int log2_bytes = 0;

  auto operator<=>(const LinkKey&) const = default;
};

// Sums of gradients over a group of ranks.
struct SumKey {
  bool same_host = true;
  int num_ranks = 2;

  auto operator<=>(const SumKey&) const = default;
};

// Meetings inside passes. A size stands for all of about as many bytes.
struct MeetingKey {
  bool same_host = true;
  int num_ranks = 2;
  int log2_bytes = 0;

  auto operator<=>(const MeetingKey&) const = default;
};

// No time and no amount of work is larger. Those that are scaled by work would overflow.
inline constexpr double kMostAmount = 1e30;

// Measured values of all machines. A value type.
class Profile {
 public:
  using LayerKey = std::pair<LayerShape, Conditions>;

  struct Found {
    Passes seconds;
    Origin origin = Origin::kMeasured;
  };

  // Measured values replace those of the same key, and are mixed with them if `weight` < 1. A value
  // that is not between 0 and kMostAmount is left out, so a profile can always be stored.
  void AddLayer(const LayerKey& key, const LayerSample& sample, double weight = 1);
  void AddRank(const Conditions& conditions, const RankSample& sample, double weight = 1);
  void AddMessage(const MessageKey& key, const MessageSample& sample, double weight = 1);
  void AddLink(const LinkKey& key, const MessageSample& sample, double weight = 1);
  void AddSum(const SumKey& key, double seconds_per_byte, double weight = 1);
  void AddMeeting(const MeetingKey& key, const MessageSample& sample, double weight = 1);
  // Adds a measured pair. ratio: the time of its two passes together, divided by their time alone.
  void AddPair(const Conditions& conditions, double ratio, double weight = 1);
  // The snapshot of a checkpoint, for which training pauses.
  void AddSnapshot(const Conditions& conditions, double seconds_per_byte, double weight = 1);
  void ForgetLinks() { links_.clear(); }

  // The times of a layer that does this work. Nullopt: nothing of its kind and precision was
  // measured on this machine.
  std::optional<Found> FindLayer(const LayerKey& key, const Passes& work) const;
  // That of the nearest conditions on the same machine.
  std::optional<RankSample> FindRank(const Conditions& conditions) const;
  // The seconds of a message, from the nearest size.
  std::optional<double> FindMessage(bool same_host, std::int64_t bytes) const;
  // How many times as long a message takes from one host to another one as it does between hosts in
  // general, by the nearest size that was measured from the one to the other. from, to: the hosts'
  // full names. Nullopt: nothing was.
  std::optional<double> FindSlowness(std::string_view from, std::string_view to,
                                     std::int64_t bytes) const;
  // The seconds of each byte of a sum over so many ranks, from the nearest number of ranks.
  std::optional<double> FindSum(const SumKey& key) const;
  // The seconds of a meeting in which each of so many ranks passes on `bytes`, from the nearest
  // number of ranks and size.
  std::optional<double> FindMeeting(bool same_host, int num_ranks, std::int64_t bytes) const;
  // Returns the ratio of a pair, from the nearest conditions on the same machine.
  std::optional<double> FindPair(const Conditions& conditions) const;
  // The seconds of each byte of a rank's snapshot, from the nearest conditions on the same machine.
  std::optional<double> FindSnapshot(const Conditions& conditions) const;

  bool empty() const {
    return layers_.empty() && ranks_.empty() && messages_.empty() && links_.empty() &&
           sums_.empty() && meetings_.empty() && pairs_.empty() && snapshots_.empty();
  }
  const std::map<LayerKey, LayerSample>& layers() const { return layers_; }
  const std::map<Conditions, RankSample>& ranks() const { return ranks_; }
  const std::map<MessageKey, MessageSample>& messages() const { return messages_; }
  const std::map<LinkKey, MessageSample>& links() const { return links_; }
  const std::map<SumKey, double>& sums() const { return sums_; }
  const std::map<MeetingKey, MessageSample>& meetings() const { return meetings_; }
  const std::map<Conditions, double>& pairs() const { return pairs_; }
  const std::map<Conditions, double>& snapshots() const { return snapshots_; }

 private:
  std::map<LayerKey, LayerSample> layers_;
  std::map<Conditions, RankSample> ranks_;
  std::map<MessageKey, MessageSample> messages_;
  std::map<LinkKey, MessageSample> links_;
  std::map<SumKey, double> sums_;  // seconds of a byte
  std::map<MeetingKey, MessageSample> meetings_;
  std::map<Conditions, double> pairs_;      // ratios
  std::map<Conditions, double> snapshots_;  // seconds of a byte
};

// Returns the key of messages of so many bytes.
MessageKey KeyOfMessage(bool same_host, std::int64_t bytes);
MeetingKey KeyOfMeeting(bool same_host, int num_ranks, std::int64_t bytes);
LinkKey KeyOfLink(std::string_view from, std::string_view to, std::int64_t bytes);

// Returns the name under which links of a host are kept: the first 100 bytes of the host's name.
std::string LinkName(std::string_view host);

}  // namespace takt::profile
