// SPDX-License-Identifier: Apache-2.0
// Compares sums of gradients where replicas share experts, bit by bit, with those where each
// replica has all experts.
#include "worker/train/expert_gradients.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "gtest/gtest.h"
#include "tests/testing/inproc_hub.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/train/device_group_testing.h"
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
  RankLayer(backend::Backend& backend, const model::ExpertShare& share, int own,
            const ContributionOf& contribution_of)
      : backend_(backend) {
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
    Floats values;
    for (std::size_t p = 0; p < parameters_.size(); ++p) {
      const model::Parameter& parameter = *parameters_[p];
      layer_.refs.push_back({.parameter = &parameter});
      for (int place = 0; place < parameter.split.gradients; ++place) {
        // The gradient by the last rank of the group is first.
        const int size = parameter.split.gradients, source = (place + size - 1) % size;
        const int contribution = parameter.expert < 0 ? own : contribution_of(source);
        for (int i = 0; i < kElements; ++i)
          values.push_back(GradientOf(numbers_[p], i, contribution));
      }
    }
    const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
    memory_ = backend.Allocate(bytes.size(), MemoryKind::kGradients).value();
    EXPECT_TRUE(backend.CopyFromHost(bytes, memory_.data()).ok());
    EXPECT_TRUE(backend.Synchronize().ok());
    float* next = memory_.floats();
    for (ParameterRef& ref : layer_.refs) {
      ref.gradient = next;
      next += ref.parameter->gradient_elements();
    }
    layer_.gradients = memory_.float_span();
  }

  const LayerParameters& layer() const { return layer_; }

  void Check(int contributions) const {
    for (std::size_t p = 0; p < parameters_.size(); ++p) {
      Floats sums(kElements);
      const auto* const gradient = reinterpret_cast<const std::byte*>(layer_.refs[p].gradient);
      EXPECT_TRUE(backend_.CopyToHost(gradient, std::as_writable_bytes(std::span(sums))).ok());
      EXPECT_TRUE(backend_.Synchronize().ok());
      int wrong = 0;
      for (int i = 0; i < kElements; ++i)
        wrong += sums[static_cast<std::size_t>(i)] == SumOf(numbers_[p], i, contributions) ? 0 : 1;
      EXPECT_EQ(wrong, 0) << "parameter " << numbers_[p];
    }
  }

 private:
  std::vector<std::unique_ptr<model::Parameter>> parameters_;
  std::vector<int> numbers_;
  backend::Backend& backend_;
  backend::Buffer memory_;
  LayerParameters layer_;
};

struct Case {
  int replicas, size, copies;
};

// The ranks of a case. Rank r has copy r % copies of replica r / copies, which is the order of
// sums.
class ExpertGradients : public ::testing::TestWithParam<Case> {
 protected:
  using Connect = std::function<absl::StatusOr<std::unique_ptr<transport::Collective>>(
      const transport::CollectiveOptions&)>;

  static int num_ranks() { return GetParam().replicas * GetParam().copies; }

  // Sums the gradients of a rank on `backend`, and compares them.
  static absl::Status CompareOnRank(int rank, backend::Backend& backend, const Connect& connect) {
    const int size = GetParam().size, copies = GetParam().copies;
    const int replica = rank / copies, copy = rank % copies;
    const model::ExpertShare share{.size = size, .index = replica % size};
    std::vector<Rank> all, holders;
    int index = 0;
    for (int other = 0; other < num_ranks(); ++other) {
      all.emplace_back(other);
      if (other / copies % size != share.index) continue;
      if (other == rank) index = static_cast<int>(holders.size());
      holders.emplace_back(other);
    }
    ASSIGN_OR_RETURN(const auto everybody,
                     connect({.name = "replicas", .ranks = all, .index = rank}));
    std::unique_ptr<transport::Collective> same;
    if (holders.size() > 1) {
      ASSIGN_OR_RETURN(same, connect({.name = absl::StrCat("holders-", share.index),
                                      .ranks = holders,
                                      .index = index}));
    }
    const int first_replica = replica - share.index;
    RankLayer layer(backend, share, rank,
                    [&](int source) { return (first_replica + source) * copies + copy; });
    ASSIGN_OR_RETURN(const std::unique_ptr<GradientSums> sums,
                     GradientSums::Create({.replicas = everybody.get(),
                                           .holders = same.get(),
                                           .copies = copies,
                                           .share = share,
                                           .backend = &backend}));
    RETURN_IF_ERROR(sums->Sum(StepId(1), layer.layer()));
    if (everybody->stream() != nullptr)
      RETURN_IF_ERROR(transport::nccl::Finish(*everybody->stream()));
    layer.Check(num_ranks());
    return absl::OkStatus();
  }
};

TEST_P(ExpertGradients, AreAddedInTheOrderOfReplicas) {
  testing::InprocHub hub;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < num_ranks(); ++rank) {
    threads.emplace_back([&, rank] {
      const auto transport =
          hub.Connect({.rank = Rank(rank), .num_ranks = num_ranks(), .job = "gradients"});
      const auto backend = backend::CreateCpuBackend({}).value();
      const absl::Status status =
          CompareOnRank(rank, *backend, [&](const transport::CollectiveOptions& about) {
            return transport::CreateCollective(transport.get(), about);
          });
      EXPECT_TRUE(status.ok()) << rank << ": " << status;
    });
  }
}

TEST_P(ExpertGradients, AreAddedInThatOrderOnDevices) {
  for (const bool has_nccl : {false, true}) {
    SCOPED_TRACE(has_nccl ? "by NCCL" : "through the host");
    ForAllDevices(num_ranks(), has_nccl, [](transport::nccl::TestRank& rank, int index) {
      return CompareOnRank(index, *rank.backend, [&](const transport::CollectiveOptions& about) {
        return rank.transport->OpenSums(about);
      });
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
