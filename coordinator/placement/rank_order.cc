// SPDX-License-Identifier: Apache-2.0
#include "coordinator/placement/rank_order.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "common/base/id.h"
#include "common/mesh/mesh.h"
#include "common/plan/traffic.h"

namespace takt::placement {
namespace {

// So many hosts are compared in all their orders.
constexpr std::size_t kMostCompared = 8;
// For more hosts the search ends after so many steps, each of which looks at a pp rank of a host or
// at a host that might take a place. One search puts the hosts into an order, another one exchanges
// them. Each takes about a tenth of a second.
constexpr std::int64_t kMostWork = 4'000'000;
// An order that saves less than this of a step is no better.
constexpr double kWorthwhileSeconds = 1e-6;
// A link is as fast as others if its messages take at most so many times as long as theirs, or
// theirs as its own. Measurements differ by that much.
constexpr double kUsualSlowness = 1.25;
// Sums send messages of up to this size (worker/transport/channel_collective.h).
constexpr std::int64_t kSumMessageBytes = 512 * 1024;

// Counts what ranks send to others in a step.
struct Sent {
  double messages = 0, sum_bytes = 0;
};

// Says how long each of these takes.
struct LinkSeconds {
  double message = 0, sum_byte = 0;

  double Of(const Sent& sent) const { return sent.messages * message + sent.sum_bytes * sum_byte; }
};

// Says what a rank of one pp rank sends to each rank of another one, or of the same one.
struct Edge {
  int to = 0;               // pp rank
  bool same_chain = false;  // only to the one of its own chain (mesh::Mesh)
  Sent sent;
};
using Edges = std::vector<std::vector<Edge>>;  // by pp rank

Edges EdgesOf(const plan::Plan& plan, const std::vector<plan::Messages>& messages) {
  Edges edges(plan.mesh.pp_size);
  for (const plan::Messages& link : messages) {
    edges[link.from.value()].push_back({.to = link.to.value(),
                                        .same_chain = true,
                                        .sent = {.messages = static_cast<double>(link.count)}});
  }
  for (const plan::SumTraffic& sum : plan::SumTrafficOf(plan)) {
    edges[sum.from.value()].push_back({.to = sum.to.value(),
                                       .same_chain = sum.within_pipeline,
                                       .sent = {.sum_bytes = sum.bytes}});
  }
  return edges;
}

// Returns the mean size of the messages between stages.
std::int64_t MessageBytes(const std::vector<plan::Messages>& messages) {
  std::int64_t bytes = 0, count = 0;
  for (const plan::Messages& link : messages) {
    bytes += link.bytes;
    count += link.count;
  }
  return count > 0 ? bytes / count : 0;
}

// Consecutive numbers from `begin` to before `end`.
struct Range {
  int begin = 0, end = 0;

  int size() const { return end - begin; }
};

// The ranks of a mesh in a row: the copies of one stage after the other, or one chain after the
// other. A host gets consecutive places of it.
class Row {
 public:
  // edges: borrowed.
  Row(const mesh::Mesh& mesh, const Edges& edges, bool stage_by_stage)
      : mesh_(mesh), edges_(edges), stage_by_stage_(stage_by_stage) {}

  Rank RankAt(int place) const {
    if (stage_by_stage_) return Rank(place);
    return mesh_.RankOf(PpRank(place % mesh_.pp_size), place / mesh_.pp_size);
  }

  // Returns how many pp ranks have a rank at these places.
  int NumPpRanks(const Range& places) const {
    if (!stage_by_stage_) return std::min(places.size(), mesh_.pp_size);
    return (places.end - 1) / mesh_.num_chains() - places.begin / mesh_.num_chains() + 1;
  }

  // Returns what the ranks at some places send to those at others. The two may be the same;
  // otherwise they must have no place in common.
  Sent Between(const Range& from, const Range& to) const {
    Sent all;
    const int first =
        stage_by_stage_ ? from.begin / mesh_.num_chains() : from.begin % mesh_.pp_size;
    for (int i = 0; i < NumPpRanks(from); ++i) {
      const int pp_rank = (first + i) % mesh_.pp_size;
      const Range senders = ChainsAt(from, pp_rank);
      for (const Edge& edge : edges_[pp_rank]) {
        const Range receivers = ChainsAt(to, edge.to);
        const int common = std::max(
            0, std::min(senders.end, receivers.end) - std::max(senders.begin, receivers.begin));
        double pairs = common;
        if (!edge.same_chain) {
          // No rank sends to itself.
          pairs = static_cast<double>(senders.size()) * receivers.size() -
                  (edge.to == pp_rank ? common : 0);
        }
        all.messages += pairs * edge.sent.messages;
        all.sum_bytes += pairs * edge.sent.sum_bytes;
      }
    }
    return all;
  }

 private:
  // Returns the chains whose rank of a pp rank is at these places.
  Range ChainsAt(const Range& places, int pp_rank) const {
    if (stage_by_stage_) {
      const int begin = pp_rank * mesh_.num_chains();
      return {std::clamp(places.begin - begin, 0, mesh_.num_chains()),
              std::clamp(places.end - begin, 0, mesh_.num_chains())};
    }
    const int round_up = mesh_.pp_size - 1 - pp_rank;
    return {(places.begin + round_up) / mesh_.pp_size, (places.end + round_up) / mesh_.pp_size};
  }

  const mesh::Mesh mesh_;
  const Edges& edges_;
  const bool stage_by_stage_;
};

// Says how much longer messages to and from another block take than between most hosts.
struct Excess {
  LinkSeconds to, from;
};

// The workers of a gang that are on one host and follow one another.
struct Block {
  std::string host;
  int first = 0, size = 0;           // of the gang
  std::map<int, Excess> neighbours;  // by block; those whose links are not as others
};

// Says where each block lies in a row, and how much longer the messages of a step then take than
// they would between most hosts.
struct Order {
  std::vector<Range> places;  // by block
  double seconds = 0;
};

// Looks for the best order of blocks in a row.
class Search {
 public:
  // within: what messages within a host take, beyond what they take between most hosts. blocks:
  // borrowed.
  Search(const Row& row, const std::vector<Block>& blocks, const LinkSeconds& within)
      : row_(row), blocks_(blocks), within_(within), places_(blocks.size()) {}

  Order Run() && {
    if (blocks_.size() > kMostCompared) return Improve();
    Compare(/*begin=*/0, /*seconds=*/0);
    return std::move(best_);
  }

 private:
  bool IsPlaced(int block) const { return places_[block].size() > 0; }
  int num_blocks() const { return static_cast<int>(blocks_.size()); }

  Sent Between(const Range& from, const Range& to) {
    if (blocks_.size() > kMostCompared) {
      work_ += row_.NumPpRanks(from);
      return row_.Between(from, to);
    }
    // Few blocks meet at the same places again and again.
    const std::array<int, 4> key = {from.begin, from.end, to.begin, to.end};
    const auto [it, is_new] = known_.try_emplace(key);
    if (is_new) it->second = row_.Between(from, to);
    return it->second;
  }

  double WithinSeconds(int block) { return within_.Of(Between(places_[block], places_[block])); }

  // Returns what the links between the block and its neighbours add, as far as these are placed.
  // all_but: this neighbour does not count.
  double LinkedSeconds(int block, int all_but = -1) {
    double seconds = 0;
    for (const auto& [other, excess] : blocks_[block].neighbours) {
      if (other == all_but || !IsPlaced(other)) continue;
      seconds += excess.to.Of(Between(places_[block], places_[other])) +
                 excess.from.Of(Between(places_[other], places_[block]));
    }
    return seconds;
  }

  double Seconds() {
    double seconds = 0;
    for (int block = 0; block < num_blocks(); ++block) {
      // Each pair counts once from each of its ends.
      seconds += WithinSeconds(block) + LinkedSeconds(block) / 2;
    }
    return seconds;
  }

  // Tries all orders of the blocks that have no places yet, from `begin` on. The first one is that
  // of the gang. seconds: of those that are placed.
  void Compare(int begin, double seconds) {
    bool complete = true;
    for (int block = 0; block < num_blocks(); ++block) {
      if (IsPlaced(block)) continue;
      complete = false;
      places_[block] = {begin, begin + blocks_[block].size};
      Compare(places_[block].end, seconds + WithinSeconds(block) + LinkedSeconds(block));
      places_[block] = {};
    }
    if (!complete) return;
    if (best_.places.empty() || seconds < best_.seconds - kWorthwhileSeconds)
      best_ = {.places = places_, .seconds = seconds};
  }

  Order Improve() {
    std::vector<Range> usual;
    for (const Block& block : blocks_) usual.push_back({block.first, block.first + block.size});
    places_ = usual;
    const double seconds = Seconds();
    if (!PlaceOneByOne(usual) || Seconds() > seconds - kWorthwhileSeconds) places_ = usual;
    Exchange();
    return {.places = places_, .seconds = Seconds()};
  }

  // Gives places, one after the other, to the block that adds least to those before it. Returns
  // false if that is too much work.
  bool PlaceOneByOne(const std::vector<Range>& all) {
    const std::int64_t most = work_ + kMostWork;
    std::ranges::fill(places_, Range());
    std::list<int> free(blocks_.size());
    std::iota(free.begin(), free.end(), 0);
    for (const Range& places : all) {
      auto best = free.end();
      double least = 0;
      for (auto it = free.begin(); it != free.end(); ++it) {
        if (++work_ > most) return false;
        if (blocks_[*it].size != places.size()) continue;
        places_[*it] = places;
        const double seconds = LinkedSeconds(*it);
        places_[*it] = {};
        if (best != free.end() && seconds > least - kWorthwhileSeconds) continue;
        best = it;
        least = seconds;
      }
      places_[*best] = places;
      free.erase(best);
    }
    return true;
  }

  // Exchanges the places of two blocks of one size, as long as a step gets shorter by it.
  void Exchange() {
    const std::int64_t most = work_ + kMostWork;
    bool better = true;
    while (better) {
      better = false;
      for (const auto& [seconds, block] : WorstFirst()) {
        for (int other = 0; other < num_blocks(); ++other) {
          if (++work_ > most) return;
          if (other != block && blocks_[other].size == blocks_[block].size)
            better |= TryExchange(block, other);
        }
      }
    }
  }

  bool TryExchange(int a, int b) {
    const double before = LinkedSeconds(a) + LinkedSeconds(b, /*all_but=*/a);
    std::swap(places_[a], places_[b]);
    const double after = LinkedSeconds(a) + LinkedSeconds(b, /*all_but=*/a);
    if (after < before - kWorthwhileSeconds) return true;
    std::swap(places_[a], places_[b]);
    return false;
  }

  // Returns the blocks with neighbours, those first whose links add most.
  std::vector<std::pair<double, int>> WorstFirst() {
    std::vector<std::pair<double, int>> blocks;  // by what their links add, negated
    for (int block = 0; block < num_blocks(); ++block) {
      if (!blocks_[block].neighbours.empty()) blocks.emplace_back(-LinkedSeconds(block), block);
    }
    std::ranges::sort(blocks);
    return blocks;
  }

  const Row& row_;
  const std::vector<Block>& blocks_;
  const LinkSeconds within_;
  std::vector<Range> places_;  // by block; empty: it has none yet
  Order best_;
  std::map<std::array<int, 4>, Sent> known_;
  std::int64_t work_ = 0;
};

std::vector<Block> BlocksOf(const Gang& workers) {
  std::vector<Block> blocks;
  for (std::size_t i = 0; i < workers.size(); ++i) {
    const std::string& host = workers[i]->hello.host;
    if (blocks.empty() || blocks.back().host != host)
      blocks.push_back({.host = host, .first = static_cast<int>(i)});
    ++blocks.back().size;
  }
  return blocks;
}

// Knows what was measured of the links between the hosts of a gang, for messages of one size.
class Links {
 public:
  Links(const profile::Profile& measured, std::int64_t message_bytes)
      : measured_(measured),
        message_bytes_(message_bytes),
        usual_(SecondsOf(/*same_host=*/false)) {}

  // Returns what messages within a host take, beyond what they take between most hosts. Where
  // nobody measured them, they take nothing.
  LinkSeconds Within() const {
    const LinkSeconds same_host = SecondsOf(/*same_host=*/true);
    return {.message = same_host.message - usual_.message,
            .sum_byte = same_host.sum_byte - usual_.sum_byte};
  }

  // Fills in the neighbours of blocks. Returns false if no link between two of them was measured.
  bool AddTo(std::vector<Block>& blocks) const {
    std::map<std::string, std::vector<int>> of_host;
    for (std::size_t i = 0; i < blocks.size(); ++i)
      of_host[profile::LinkName(blocks[i].host)].push_back(static_cast<int>(i));
    bool any = false;
    for (const auto& [key, sample] : measured_.links()) {
      const auto from = of_host.find(key.from), to = of_host.find(key.to);
      if (from == of_host.end() || to == of_host.end()) continue;
      any = true;
      const LinkSeconds excess = ExcessOf(key.from, key.to);
      for (const int a : from->second) {
        for (const int b : to->second) Add(excess, a, b, blocks);
      }
    }
    for (const auto& [host, of_it] : of_host) {
      for (const int a : of_it) {
        for (const int b : of_it) Add(Within(), a, b, blocks);
      }
    }
    return any;
  }

 private:
  LinkSeconds SecondsOf(bool same_host) const {
    return {.message = measured_.FindMessage(same_host, message_bytes_).value_or(0),
            .sum_byte = measured_.FindMessage(same_host, kSumMessageBytes).value_or(0) /
                        static_cast<double>(kSumMessageBytes)};
  }

  LinkSeconds ExcessOf(const std::string& from, const std::string& to) const {
    const auto excess = [&](std::int64_t bytes) {
      const double slowness = measured_.FindSlowness(from, to, bytes).value_or(1);
      const bool usual = slowness <= kUsualSlowness && slowness >= 1 / kUsualSlowness;
      return usual ? 0 : slowness - 1;
    };
    return {.message = usual_.message * excess(message_bytes_),
            .sum_byte = usual_.sum_byte * excess(kSumMessageBytes)};
  }

  static void Add(const LinkSeconds& excess, int from, int to, std::vector<Block>& blocks) {
    if (from == to || (excess.message == 0 && excess.sum_byte == 0)) return;
    blocks[from].neighbours[to].to = excess;
    blocks[to].neighbours[from].from = excess;
  }

  const profile::Profile& measured_;
  const std::int64_t message_bytes_;
  const LinkSeconds usual_;  // between most hosts
};

// Returns the workers that get ranks. The ranks of a tensor group are consecutive, so each host
// gives workers for whole groups. If that is too few, the workers that are left follow, and their
// groups span hosts.
Gang WorkersFor(const Gang& gang, const mesh::Mesh& mesh) {
  if (mesh.tp_size == 1) return Gang(gang.begin(), gang.begin() + mesh.size());
  Gang workers, left;
  for (const Block& block : BlocksOf(gang)) {
    const auto begin = gang.begin() + block.first, end = begin + block.size;
    const auto whole = begin + block.size / mesh.tp_size * mesh.tp_size;
    workers.insert(workers.end(), begin, whole);
    left.insert(left.end(), whole, end);
  }
  workers.insert(workers.end(), left.begin(), left.end());
  workers.resize(mesh.size());
  return workers;
}

Gang Place(const Gang& workers, const std::vector<Block>& blocks, const Row& row,
           const Order& order) {
  Gang ranks(workers.size());
  for (std::size_t block = 0; block < blocks.size(); ++block) {
    for (int i = 0; i < blocks[block].size; ++i) {
      const Rank rank = row.RankAt(order.places[block].begin + i);
      ranks[rank.value()] = workers[blocks[block].first + i];
    }
  }
  return ranks;
}

}  // namespace

Gang PlaceRanks(const Gang& gang, const plan::Plan& plan, const profile::Profile& measured) {
  const Gang workers = WorkersFor(gang, plan.mesh);
  if (measured.links().empty()) return workers;
  std::vector<Block> blocks = BlocksOf(workers);
  const auto splits_a_group = [&](const Block& block) {
    return block.size % plan.mesh.tp_size != 0;
  };
  if (blocks.size() < 2 || std::ranges::any_of(blocks, splits_a_group)) return workers;
  // This reads all programs, so it is done once.
  const std::vector<plan::Messages> messages = plan::MessagesOf(plan.programs);
  const Links links(measured, MessageBytes(messages));
  if (!links.AddTo(blocks)) return workers;
  const Edges edges = EdgesOf(plan, messages);
  const Row stages(plan.mesh, edges, /*stage_by_stage=*/true);
  const Order by_stage = Search(stages, blocks, links.Within()).Run();
  // The ranks of a tensor group are not neighbours in a row of chains.
  if (plan.mesh.pp_size == 1 || plan.mesh.num_chains() == 1 || plan.mesh.tp_size > 1)
    return Place(workers, blocks, stages, by_stage);
  const Row pipelines(plan.mesh, edges, /*stage_by_stage=*/false);
  const Order by_pipeline = Search(pipelines, blocks, links.Within()).Run();
  return by_pipeline.seconds < by_stage.seconds - kWorthwhileSeconds
             ? Place(workers, blocks, pipelines, by_pipeline)
             : Place(workers, blocks, stages, by_stage);
}

}  // namespace takt::placement
