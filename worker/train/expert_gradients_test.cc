// SPDX-License-Identifier: Apache-2.0
// Compares sums of gradients where replicas share experts, bit by bit, with those where each
// replica has all experts.
#include "worker/train/expert_gradients.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/testing/inproc_hub.h"
#include "worker/transport/channel_collective.h"

namespace takt::train {
namespace {

using Floats = std::vector<float>;

// A parameter has more than one slice, and no whole number of them.
constexpr int kExperts = 4, kElements = (128 << 10) + 5;

// Returns the gradient of one element by the microbatches of one replica and copy. The order in
// which these are added shows in the bits.
float GradientOf(int parameter, int element, int contribution) {
  const auto x =
      static_cast<std::uint32_t>(1 + parameter * 131 + element * 17 + contribution * 7919);
  const auto mixed = static_cast<std::int32_t>(x * 2654435761U) >> 8;
  return static_cast<float>(mixed) / static_cast<float>(1 << (contribution * 5 + element) % 9);
}

// The sum in the order of contributions.
float SumOf(int parameter, int element, int contributions) {
  float sum = GradientOf(parameter, element, 0);
  for (int i = 1; i < contributions; ++i) sum += GradientOf(parameter, element, i);
  return sum;
}

// A layer of one rank: a router (parameter kExperts), then its experts, then a bias
// (kExperts + 1).
class RankLayer {
 public:
  // contribution_of(source): the number of what the rank has for a replica of its group.
  template <class ContributionOf>
  RankLayer(const model::ExpertShare& share, int own, const ContributionOf& contribution_of) {
    const int here = kExperts / share.size;
    const auto add = [&](int number, int expert, int gradients) {
      auto& parameter = parameters_.emplace_back(std::make_unique<model::Parameter>());
      parameter->shape = {kElements};
      parameter->expert = expert;
      parameter->split.gradients = gradients;
      numbers_.push_back(number);
    };
    add(kExperts, -1, 1);
    for (int e = share.index * here; e < (share.index + 1) * here; ++e) add(e, e, share.size);
    add(kExperts + 1, -1, 1);
    for (std::size_t p = 0; p < parameters_.size(); ++p) {
      const model::Parameter& parameter = *parameters_[p];
      layer_.refs.push_back({.parameter = &parameter});
      for (int source = 0; source < parameter.split.gradients; ++source) {
        const int contribution = parameter.expert < 0 ? own : contribution_of(source);
        for (int i = 0; i < kElements; ++i)
          memory_.push_back(GradientOf(numbers_[p], i, contribution));
      }
    }
    float* next = memory_.data();
    for (ParameterRef& ref : layer_.refs) {
      ref.gradient = next;
      next += ref.parameter->gradient_elements();
    }
    layer_.gradients = memory_;
  }

  const LayerParameters& layer() const { return layer_; }

  void Check(int contributions) const {
    for (std::size_t p = 0; p < parameters_.size(); ++p) {
      int wrong = 0;
      for (int i = 0; i < kElements; ++i)
        wrong += layer_.refs[p].gradient[i] == SumOf(numbers_[p], i, contributions) ? 0 : 1;
      EXPECT_EQ(wrong, 0) << "parameter " << numbers_[p];
    }
  }

 private:
  std::vector<std::unique_ptr<model::Parameter>> parameters_;
  std::vector<int> numbers_;
  Floats memory_;
  LayerParameters layer_;
};

struct Case {
  int replicas, size, copies;
};

class ExpertGradients : public ::testing::TestWithParam<Case> {};

TEST_P(ExpertGradients, AreAddedInTheOrderOfReplicas) {
  const auto [replicas, size, copies] = GetParam();
  const int num_ranks = replicas * copies;
  testing::InprocHub hub;
  std::vector<std::jthread> threads;
  // Rank r has copy r % copies of replica r / copies, which is the order of sums.
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank, size = size, copies = copies] {
      const auto transport =
          hub.Connect({.rank = Rank(rank), .num_ranks = num_ranks, .job = "gradients"});
      const int replica = rank / copies, copy = rank % copies;
      const model::ExpertShare share{.size = size, .index = replica % size};
      std::vector<Rank> all, holders;
      int index = 0;
      for (int other = 0; other < num_ranks; ++other) {
        all.emplace_back(other);
        if (other / copies % size != share.index) continue;
        if (other == rank) index = static_cast<int>(holders.size());
        holders.emplace_back(other);
      }
      const auto connect = [&](const std::string& name, const std::vector<Rank>& ranks, int at) {
        return transport::CreateCollective(transport.get(),
                                           {.name = name, .ranks = ranks, .index = at})
            .value();
      };
      const auto everybody = connect("replicas", all, rank);
      std::unique_ptr<transport::Collective> same;
      if (holders.size() > 1) same = connect(absl::StrCat("holders-", share.index), holders, index);
      const int first_replica = replica - share.index;
      RankLayer layer(share, rank,
                      [&](int source) { return (first_replica + source) * copies + copy; });
      const absl::Status status = SumGradients(
          StepId(1), layer.layer(),
          {.replicas = everybody.get(), .holders = same.get(), .copies = copies, .share = share});
      EXPECT_TRUE(status.ok()) << rank << ": " << status;
      layer.Check(num_ranks);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, ExpertGradients,
                         ::testing::Values(Case{2, 2, 1}, Case{4, 2, 1}, Case{4, 4, 1},
                                           Case{8, 2, 1}, Case{2, 2, 2}, Case{4, 2, 2}),
                         [](const auto& info) {
                           return absl::StrCat("Replicas", info.param.replicas, "Expert",
                                               info.param.size, "Copies", info.param.copies);
                         });

}  // namespace
}  // namespace takt::train
