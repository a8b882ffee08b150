// SPDX-License-Identifier: Apache-2.0
#include "coordinator/placement/rank_order.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/id.h"
#include "common/mesh/mesh.h"
#include "common/plan/traffic.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"

namespace takt::placement {
namespace {

using ::testing::ElementsAre;

constexpr std::int64_t kSumMessageBytes = 512 * 1024;

struct JobShape {
  const char* schedule = "1f1b";
  int pp_size = 1, dp_size = 1;
  int context = 32;        // long contexts make large messages
  bool tied_head = false;  // both ends of a pipeline sum the gradients of a tied embedding
};

plan::Plan PlanOf(const JobShape& shape) {
  config::JobSpec job;
  job.name = "j";
  job.model = {.family = model::Family::kLlama,
               .layers = 16,
               .hidden = 64,
               .heads = 4,
               .kv_heads = 4,
               .inner = 256,
               .context = shape.context,
               .positions = shape.context,
               .vocab = 256,
               .tied_head = shape.tied_head};
  job.global_batch = 24 * shape.dp_size;
  job.parallelism.pipeline = shape.pp_size;
  job.parallelism.data = shape.dp_size;
  job.parallelism.schedule = shape.schedule;
  return plan::MakePlan(job, {.max_workers = shape.pp_size * shape.dp_size}).value();
}

// Makes so many workers on each host, named for it: "a0", "a1".
Workers WorkersOn(const std::vector<std::pair<std::string, int>>& hosts) {
  Workers workers;
  for (const auto& [host, count] : hosts) {
    for (int i = 0; i < count; ++i) {
      const std::string name = absl::StrCat(host, i);
      workers[name].hello = {.worker = name, .host = host};
    }
  }
  return workers;
}

Gang SortedGang(const Workers& workers) {
  Gang gang;
  for (const auto& [name, worker] : workers) gang.push_back(&worker);
  SortByRank(gang, config::DeviceKind::kCpu);
  return gang;
}

std::vector<std::string> NamesOf(const Gang& gang) {
  std::vector<std::string> names;
  for (const Worker* worker : gang) names.push_back(worker->hello.worker);
  return names;
}

// A link from one host to another one, and how many times as long as usual its messages take.
using Link = std::tuple<std::string, std::string, double>;

// Messages take 10 us and 1 ns a byte between hosts, and a tenth of that within a host.
profile::Profile Measured(const std::vector<Link>& links = {}) {
  const auto usual = [](std::int64_t bytes) { return 1e-5 + 1e-9 * static_cast<double>(bytes); };
  profile::Profile measured;
  for (std::int64_t bytes = 1; bytes <= kSumMessageBytes; bytes *= 2) {
    measured.AddMessage(profile::KeyOfMessage(false, bytes),
                        {.bytes = bytes, .seconds = usual(bytes)});
    measured.AddMessage(profile::KeyOfMessage(true, bytes),
                        {.bytes = bytes, .seconds = usual(bytes) / 10});
  }
  for (const auto& [from, to, slowness] : links) {
    measured.AddLink(profile::KeyOfLink(from, to, 4096),
                     {.bytes = 4096, .seconds = slowness * usual(4096)});
  }
  return measured;
}

// The same in both directions.
profile::Profile MeasuredBothWays(const std::vector<Link>& links) {
  std::vector<Link> both = links;
  for (const auto& [from, to, slowness] : links) both.emplace_back(to, from, slowness);
  return Measured(both);
}

std::vector<std::string> Place(const std::vector<std::pair<std::string, int>>& hosts,
                               const JobShape& shape, const profile::Profile& measured) {
  const Workers workers = WorkersOn(hosts);
  return NamesOf(PlaceRanks(SortedGang(workers), PlanOf(shape), measured));
}

const std::vector<std::pair<std::string, int>> kFourHosts = {
    {"a", 1}, {"b", 1}, {"c", 1}, {"d", 1}};

TEST(PlaceRanks, NeighboursInThePipelineHaveNoSlowLink) {
  EXPECT_THAT(Place(kFourHosts, {.pp_size = 4}, MeasuredBothWays({{"b", "c", 20}})),
              ElementsAre("a0", "b0", "d0", "c0"));
  // What a message of the other direction takes counts as well.
  EXPECT_THAT(Place(kFourHosts, {.pp_size = 4}, Measured({{"c", "b", 20}})),
              ElementsAre("a0", "b0", "d0", "c0"));
}

TEST(PlaceRanks, NeighboursTakeTheFastLinks) {
  const auto measured = MeasuredBothWays({{"a", "c", 0.1}, {"c", "b", 0.1}, {"b", "d", 0.1}});
  EXPECT_THAT(Place(kFourHosts, {.pp_size = 4}, measured), ElementsAre("a0", "c0", "b0", "d0"));
}

TEST(PlaceRanks, BothEndsOfThePipelineAreNeighboursIfTheySendToEachOther) {
  const profile::Profile measured = MeasuredBothWays({{"a", "d", 20}});
  const auto usual = ElementsAre("a0", "b0", "c0", "d0");
  const auto apart = ElementsAre("a0", "b0", "d0", "c0");
  EXPECT_THAT(Place(kFourHosts, {.pp_size = 4}, measured), usual);
  EXPECT_THAT(Place(kFourHosts, {.pp_size = 4, .tied_head = true}, measured), apart);
  EXPECT_THAT(Place(kFourHosts, {.schedule = "interleaved-1f1b", .pp_size = 4}, measured), apart);
}

TEST(PlaceRanks, WhatSendsMostStaysOnAHost) {
  const std::vector<std::pair<std::string, int>> hosts = {{"a", 4}, {"b", 4}};
  JobShape shape{.pp_size = 4, .dp_size = 2};
  const profile::Profile measured = MeasuredBothWays({{"a", "b", 1}});
  const auto stages = ElementsAre("a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3");
  EXPECT_THAT(Place(hosts, shape, measured), stages);
  shape.context = 2048;
  EXPECT_THAT(Place(hosts, shape, measured),
              ElementsAre("a0", "b0", "a1", "b1", "a2", "b2", "a3", "b3"));
  EXPECT_THAT(Place(hosts, shape, Measured()), stages) << "nothing was measured between these two";
}

TEST(PlaceRanks, KeepsTheOrderUnlessALinkIsUnlikeOthers) {
  const std::vector<std::string> usual = {"a0", "b0", "c0", "d0"};
  const JobShape shape{.pp_size = 4};
  EXPECT_EQ(Place(kFourHosts, shape, {}), usual);
  EXPECT_EQ(Place(kFourHosts, shape, Measured({{"a", "x", 9}, {"x", "y", 9}})), usual);
  EXPECT_EQ(Place(kFourHosts, shape, MeasuredBothWays({{"a", "b", 1.2}, {"b", "c", 0.9}})), usual);
}

TEST(PlaceRanks, TakesTheFirstWorkersOfALargerGang) {
  EXPECT_THAT(Place(kFourHosts, {.pp_size = 3}, MeasuredBothWays({{"a", "b", 20}})),
              ElementsAre("a0", "c0", "b0"));
}

TEST(PlaceRanks, ATensorGroupStaysOnAHostWhileHostsHaveWorkersEnough) {
  const std::vector<std::pair<std::string, int>> hosts = {{"a", 3}, {"b", 3}, {"c", 2}};
  const Workers workers = WorkersOn(hosts);
  const auto place = [&](int pp_size, const profile::Profile& measured) {
    plan::Plan plan = PlanOf({.pp_size = pp_size});
    plan.mesh.tp_size = 2;
    return NamesOf(PlaceRanks(SortedGang(workers), plan, measured));
  };
  EXPECT_THAT(place(2, {}), ElementsAre("a0", "a1", "b0", "b1"));
  EXPECT_THAT(place(3, {}), ElementsAre("a0", "a1", "b0", "b1", "c0", "c1"));
  EXPECT_THAT(place(4, {}), ElementsAre("a0", "a1", "b0", "b1", "c0", "c1", "a2", "b2"));
  // Hosts change their places with all their groups.
  EXPECT_THAT(place(3, MeasuredBothWays({{"a", "b", 20}})),
              ElementsAre("a0", "a1", "c0", "c1", "b0", "b1"));
}

// The hosts of two groups take turns in the gang. Links between the groups are slow.
TEST(PlaceRanks, SixteenHostsInTwoGroupsHaveOneSlowLinkInThePipeline) {
  std::vector<std::pair<std::string, int>> hosts;
  std::vector<Link> links;
  for (int i = 0; i < 16; ++i) {
    hosts.emplace_back(absl::StrFormat("h%02d-", i), 1);
    for (int j = 0; j < i; ++j) {
      if ((i + j) % 2 == 1) links.emplace_back(hosts[i].first, hosts[j].first, 10);
    }
  }
  const Workers workers = WorkersOn(hosts);
  const Gang ranks =
      PlaceRanks(SortedGang(workers), PlanOf({.pp_size = 16}), MeasuredBothWays(links));
  const auto group = [](const Worker* worker) { return (worker->hello.host[2] - '0') % 2; };
  int slow = 0;
  for (int rank = 1; rank < 16; ++rank)
    slow += group(ranks[rank - 1]) != group(ranks[rank]) ? 1 : 0;
  EXPECT_EQ(slow, 1);
}

TEST(PlaceRanks, ThousandsOfHostsAvoidSlowLinks) {
  constexpr int kHosts = 2048, kCopies = 1024;
  std::vector<std::pair<std::string, int>> hosts;
  for (int i = 0; i < kHosts; ++i) hosts.emplace_back(absl::StrFormat("h%04d-", i), 8);
  // In the usual order these pairs have neighbours in the pipeline.
  std::set<std::pair<std::string, std::string>> slow;
  std::vector<Link> links;
  for (int i = 0; i < kHosts - kCopies / 8; i += 37) {
    links.emplace_back(hosts[i].first, hosts[i + kCopies / 8].first, 20);
    slow.emplace(hosts[i].first, hosts[i + kCopies / 8].first);
  }
  const Workers workers = WorkersOn(hosts);
  const Gang gang = SortedGang(workers);
  const plan::Plan plan = PlanOf({.pp_size = 16, .dp_size = kCopies});
  const auto num_slow = [&](const Gang& ranks) {
    int count = 0;
    for (int rank = kCopies; rank < plan.mesh.size(); ++rank) {
      const std::string &a = ranks[rank - kCopies]->hello.host, &b = ranks[rank]->hello.host;
      count += slow.contains({a, b}) || slow.contains({b, a}) ? 1 : 0;
    }
    return count;
  };
  EXPECT_EQ(num_slow(gang), 8 * static_cast<int>(slow.size()));
  EXPECT_EQ(num_slow(PlaceRanks(gang, plan, MeasuredBothWays(links))), 0);
}

// Adds up what PlaceRanks makes small, rank by rank.
class StepTimes {
 public:
  StepTimes(const plan::Plan& plan, const profile::Profile& measured, const Gang& gang)
      : dp_size_(plan.mesh.dp_size),
        messages_(plan::MessagesOf(plan.programs)),
        sums_(plan::SumTrafficOf(plan)) {
    const std::int64_t bytes = messages_.front().bytes / messages_.front().count;
    for (const Worker* a : gang) {
      for (const Worker* b : gang) {
        const std::string &from = a->hello.host, &to = b->hello.host;
        const auto seconds = [&](std::int64_t of_bytes) {
          return *measured.FindMessage(from == to, of_bytes) *
                 measured.FindSlowness(from, to, of_bytes).value_or(1);
        };
        links_.try_emplace({from, to}, seconds(bytes),
                           seconds(kSumMessageBytes) / kSumMessageBytes);
      }
    }
  }

  double Of(const Gang& ranks) const {
    double seconds = 0;
    for (const plan::Messages& messages : messages_) {
      for (int dp = 0; dp < dp_size_; ++dp) {
        seconds += static_cast<double>(messages.count) *
                   Link(ranks, messages.from, dp, messages.to, dp).first;
      }
    }
    for (const plan::SumTraffic& sum : sums_) {
      for (int a = 0; a < dp_size_; ++a) {
        for (int b = 0; b < dp_size_; ++b) {
          if ((sum.from == sum.to && a == b) || (sum.within_pipeline && a != b)) continue;
          seconds += sum.bytes * Link(ranks, sum.from, a, sum.to, b).second;
        }
      }
    }
    return seconds;
  }

 private:
  // The first is that of a message, the second that of a byte of a sum.
  using Seconds = std::pair<double, double>;

  const Seconds& Link(const Gang& ranks, PpRank from, int dp_from, PpRank to, int dp_to) const {
    return links_.at({ranks[from.value() * dp_size_ + dp_from]->hello.host,
                      ranks[to.value() * dp_size_ + dp_to]->hello.host});
  }

  const int dp_size_;
  const std::vector<plan::Messages> messages_;  // all of one size
  const std::vector<plan::SumTraffic> sums_;
  std::map<std::pair<std::string, std::string>, Seconds> links_;
};

// Gives the ranks of a mesh to the workers of hosts in this order: stage after stage, or pipeline
// after pipeline.
Gang InOrder(const std::vector<Gang>& hosts, const mesh::Mesh& mesh, bool stage_by_stage) {
  Gang ranks(mesh.size());
  int place = 0;
  for (const Gang& host : hosts) {
    for (const Worker* worker : host) {
      const int pp = place % mesh.pp_size, dp = place / mesh.pp_size;
      ranks[stage_by_stage ? place : pp * mesh.dp_size + dp] = worker;
      ++place;
    }
  }
  return ranks;
}

// Returns the orders in which the workers of each host have consecutive places.
std::vector<Gang> AllOrders(const Gang& gang, const mesh::Mesh& mesh) {
  std::vector<Gang> hosts;
  for (const Worker* worker : gang) {
    if (hosts.empty() || hosts.back().front()->hello.host != worker->hello.host)
      hosts.push_back({});
    hosts.back().push_back(worker);
  }
  std::vector<int> order(hosts.size());
  std::iota(order.begin(), order.end(), 0);
  std::vector<Gang> all;
  do {
    std::vector<Gang> ordered;
    for (const int host : order) ordered.push_back(hosts[host]);
    for (const bool stage_by_stage : {true, false})
      all.push_back(InOrder(ordered, mesh, stage_by_stage));
  } while (std::next_permutation(order.begin(), order.end()));
  return all;
}

RC_GTEST_PROP(PlaceRanksProperty, TakesTheBestOfAllOrdersThatKeepHostsTogether, ()) {
  constexpr const char* kSchedules[] = {"1f1b", "interleaved-1f1b", "zb-v"};
  const JobShape shape{.schedule = kSchedules[*rc::gen::inRange(0, 3)],
                       .pp_size = *rc::gen::inRange(2, 5),
                       .dp_size = *rc::gen::inRange(1, 4),
                       .context = *rc::gen::element(32, 512),
                       .tied_head = *rc::gen::arbitrary<bool>()};
  const int num_ranks = shape.pp_size * shape.dp_size;
  std::vector<std::pair<std::string, int>> hosts(*rc::gen::inRange(1, std::min(num_ranks, 5) + 1));
  for (std::size_t i = 0; i < hosts.size(); ++i)
    hosts[i] = {std::string(1, static_cast<char>('a' + i)), 1};
  for (int more = num_ranks - static_cast<int>(hosts.size()); more > 0; --more)
    ++hosts[*rc::gen::inRange<std::size_t>(0, hosts.size())].second;
  std::vector<Link> links;
  for (const auto& [from, of_from] : hosts) {
    for (const auto& [to, of_to] : hosts) {
      const double slowness = *rc::gen::element(0.0, 0.2, 1.0, 3.0, 20.0);
      if (from != to && slowness > 0) links.emplace_back(from, to, slowness);
    }
  }
  const profile::Profile measured = Measured(links);
  const plan::Plan plan = PlanOf(shape);
  const Workers workers = WorkersOn(hosts);
  const Gang gang = SortedGang(workers);
  const Gang ranks = PlaceRanks(gang, plan, measured);
  const std::vector<Gang> orders = AllOrders(gang, plan.mesh);
  RC_ASSERT(std::ranges::find(orders, ranks) != orders.end());
  Gang shuffled(gang.rbegin(), gang.rend());
  SortByRank(shuffled, config::DeviceKind::kCpu);
  RC_ASSERT(PlaceRanks(shuffled, plan, measured) == ranks);
  if (links.empty()) {
    RC_ASSERT(ranks == gang);
    return;
  }
  const StepTimes times(plan, measured, gang);
  double least = std::numeric_limits<double>::infinity();
  for (const Gang& order : orders) least = std::min(least, times.Of(order));
  RC_ASSERT(times.Of(ranks) <= least + 3e-6);
}

}  // namespace
}  // namespace takt::placement
