// SPDX-License-Identifier: Apache-2.0
// Compares shared experts, bit by bit, with ops over all experts on the tokens' own rank, which are
// those of Experts: in memory of the host, by the emulated kernels of GPUs, and in memory of
// simulated devices that do nothing before the host waits for them.
#include "worker/train/shared_experts.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "common/base/status.h"
#include "gtest/gtest.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/backend/forwarding_backend.h"
#include "worker/train/device_group_testing.h"
#include "worker/train/group_testing.h"
#ifdef TAKT_EMULATES_CUDA
#include "worker/backend/cuda/emulator/emulated_backend.h"
#endif

namespace takt::train {
namespace {

using Floats = std::vector<float>;
using Integers = std::vector<std::int32_t>;

constexpr std::int64_t kExperts = 4, kChosen = 2, kHidden = 19, kInner = 23;
constexpr std::int64_t kMatrix = kHidden * kInner;
constexpr int kMostRanks = 4;

Floats Random(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  Floats values(static_cast<std::size_t>(count));
  for (float& value : values) value = static_cast<float>(random() % 2001) / 1000 - 1;
  return values;
}

// Memory of a backend.
class Memory {
 public:
  explicit Memory(backend::Backend& backend) : backend_(backend) {}

  template <class T>
  T* Put(const std::vector<T>& values) {
    const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
    buffers_.push_back(backend_.Allocate(bytes.size(), MemoryKind::kStash).value());
    EXPECT_TRUE(backend_.CopyFromHost(bytes, buffers_.back().data()).ok());
    EXPECT_TRUE(backend_.Synchronize().ok());
    return reinterpret_cast<T*>(buffers_.back().data());
  }
  float* Unset(std::int64_t count) { return Put(Floats(static_cast<std::size_t>(count), -7)); }
  float* Zeros(std::int64_t count) { return Put(Floats(static_cast<std::size_t>(count))); }
  Floats Get(const float* from, std::int64_t count) {
    Floats values(static_cast<std::size_t>(count));
    EXPECT_TRUE(backend_
                    .CopyToHost(reinterpret_cast<const std::byte*>(from),
                                std::as_writable_bytes(std::span(values)))
                    .ok());
    EXPECT_TRUE(backend_.Synchronize().ok());
    return values;
  }
  backend::Backend& backend() { return backend_; }

 private:
  backend::Backend& backend_;
  std::vector<backend::Buffer> buffers_;
};

// The matrices of all experts: gate, up and down of each.
class Weights {
 public:
  explicit Weights(Memory& memory) : all_(memory.Put(Random(kExperts * 3 * kMatrix, 99))) {}
  const float* Of(std::int64_t expert, std::int64_t matrix) const {
    return all_ + (expert * 3 + matrix) * kMatrix;
  }

 private:
  const float* const all_;
};

// Has a microbatch of one rank. Ranks have different numbers of tokens, and loads are uneven:
// expert 1 has rows from odd ranks alone.
class Microbatch {
 public:
  Microbatch(Memory& memory, std::int64_t tokens, int rank, unsigned seed)
      : tokens_(tokens),
        norm_(memory.Put(Random(tokens_ * kHidden, seed))),
        d_output_(memory.Put(Random(tokens_ * kHidden, seed + 1))),
        offsets_(memory.Put(Integers(kExperts + 1))),
        pairs_(memory.Put(Integers(static_cast<std::size_t>(num_pairs())))),
        choices_(memory.Put(Integers(static_cast<std::size_t>(num_pairs())))),
        weights_(memory.Zeros(num_pairs())) {
    Floats logits = Random(tokens_ * kExperts, seed + 2);
    for (std::size_t t = 0; t < static_cast<std::size_t>(tokens_); ++t) {
      logits[t * kExperts] += 1;
      if (rank % 2 == 0) logits[t * kExperts + 1] = -9;
    }
    logits_ = memory.Put(logits);
  }

  absl::Status Route(backend::Backend& backend) {
    return backend.Run(backend::RouteTokens{.rows = {.offsets = offsets_,
                                                     .pairs = pairs_,
                                                     .tokens = tokens_,
                                                     .experts = kExperts,
                                                     .chosen = kChosen},
                                            .logits = logits_,
                                            .choices = choices_,
                                            .weights = weights_,
                                            .normalised = true});
  }
  const float* norm() const { return norm_; }
  const float* d_output() const { return d_output_; }
  std::int64_t num_tokens() const { return tokens_; }
  std::int64_t num_pairs() const { return tokens_ * kChosen; }
  SharedExperts::Routed routed() const {
    return {.rows = {.offsets = offsets_,
                     .pairs = pairs_,
                     .tokens = tokens_,
                     .experts = kExperts,
                     .chosen = kChosen},
            .choices = choices_,
            .weights = weights_};
  }

 private:
  const std::int64_t tokens_;
  const float *const norm_, *const d_output_;
  const float* logits_ = nullptr;
  std::int32_t *const offsets_, *const pairs_, *const choices_;
  float* const weights_;
};

struct Results {
  Floats output, d_weights, d_norm;
  Floats gradients = Floats(kExperts * 3 * kMatrix);  // by expert: gate, up, down
};

// Computes two microbatches as one rank with all experts does. The gradients are of both, and what
// else there is of the second one.
absl::StatusOr<Results> ComputeAtHome(backend::Backend& backend, std::int64_t tokens, int rank) {
  Memory memory(backend);
  const Weights weights(memory);
  float* const gradients = memory.Unset(kExperts * 3 * kMatrix);
  Results results;
  for (const bool second : {false, true}) {
    Microbatch microbatch(memory, tokens, rank, second ? 20 : 10);
    RETURN_IF_ERROR(microbatch.Route(backend));
    const SharedExperts::Routed routed = microbatch.routed();
    const backend::ExpertRows& rows = routed.rows;
    const std::int64_t of_inner = rows.count() * kInner, of_tokens = tokens * kHidden;
    float *const gate = memory.Unset(of_inner), *const up = memory.Unset(of_inner);
    float *const product = memory.Unset(of_inner), *const d_product = memory.Unset(of_inner);
    float *const output = memory.Zeros(of_tokens), *const d_norm = memory.Zeros(of_tokens);
    float* const d_weights = memory.Unset(rows.count());
    const auto multiply = [&](std::int64_t matrix, const float* a, float* c, bool from_hidden,
                              bool backward, bool to_tokens) -> absl::Status {
      std::vector<backend::ExpertMatrix> matrices;
      for (std::int64_t e = 0; e < kExperts; ++e) matrices.push_back({.b = weights.Of(e, matrix)});
      return backend.Run(backend::ExpertMatmul{.rows = rows,
                                               .matrices = matrices,
                                               .a = a,
                                               .c = c,
                                               .b_transposed = !backward,
                                               .to_tokens = to_tokens,
                                               .n = from_hidden ? kInner : kHidden,
                                               .k = from_hidden ? kHidden : kInner});
    };
    RETURN_IF_ERROR(multiply(0, microbatch.norm(), gate, true, false, false));
    RETURN_IF_ERROR(multiply(1, microbatch.norm(), up, true, false, false));
    RETURN_IF_ERROR(backend.Run(backend::ExpertSwigluForward{.rows = rows,
                                                             .gate = gate,
                                                             .up = up,
                                                             .weights = routed.weights,
                                                             .output = product,
                                                             .columns = kInner}));
    RETURN_IF_ERROR(multiply(2, product, output, false, false, true));
    RETURN_IF_ERROR(multiply(2, microbatch.d_output(), d_product, true, true, false));
    RETURN_IF_ERROR(backend.Run(backend::ExpertSwigluBackward{.rows = rows,
                                                              .gate = gate,
                                                              .up = up,
                                                              .weights = routed.weights,
                                                              .d_output = d_product,
                                                              .d_gate = gate,
                                                              .d_up = up,
                                                              .d_weights = d_weights,
                                                              .columns = kInner}));
    RETURN_IF_ERROR(multiply(0, gate, d_norm, false, true, true));
    RETURN_IF_ERROR(multiply(1, up, d_norm, false, true, true));
    for (std::int64_t matrix = 0; matrix < 3; ++matrix) {
      const bool down = matrix == 2;
      const float* const by_row = down ? product : matrix == 0 ? gate : up;
      const float* const by_token = down ? microbatch.d_output() : microbatch.norm();
      std::vector<backend::ExpertGradient> list;
      for (std::int64_t e = 0; e < kExperts; ++e)
        list.push_back({.c = gradients + (e * 3 + matrix) * kMatrix});
      RETURN_IF_ERROR(backend.Run(backend::ExpertMatmulTransposed{.rows = rows,
                                                                  .gradients = list,
                                                                  .a = down ? by_token : by_row,
                                                                  .b = down ? by_row : by_token,
                                                                  .a_by_token = down,
                                                                  .accumulate = second,
                                                                  .m = down ? kHidden : kInner,
                                                                  .n = down ? kInner : kHidden}));
    }
    results = {.output = memory.Get(output, of_tokens),
               .d_weights = memory.Get(d_weights, rows.count()),
               .d_norm = memory.Get(d_norm, of_tokens)};
  }
  results.gradients = memory.Get(gradients, kExperts * 3 * kMatrix);
  return results;
}

// Has what a microbatch of so many pairs needs, of which so many rows come to the rank.
struct Pass {
  Pass(Memory& memory, std::int64_t pairs, std::int64_t arrived)
      : stash{.input = memory.Unset(arrived * kHidden),
              .weights = memory.Unset(arrived),
              .gate = memory.Unset(arrived * kInner),
              .up = memory.Unset(arrived * kInner),
              .product = memory.Unset(arrived * kInner),
              .d_output = memory.Unset(arrived * kHidden)},
        scratch{.rows = memory.Unset(pairs * kHidden),
                .pairs = memory.Unset(pairs),
                .results = memory.Unset(arrived * kHidden),
                .d_weights = memory.Unset(arrived),
                .d_product = memory.Unset(arrived * kInner)} {}

  const SharedExperts::Stash stash;
  const SharedExperts::Scratch scratch;
};

// Has what the ranks of a test compute at home, and how many tokens each has.
struct Expected {
  std::vector<std::int64_t> tokens;
  std::vector<Results> home;
};

absl::StatusOr<Expected> ExpectedBy(backend::Backend& backend, std::int64_t tokens) {
  Expected expected;
  for (int rank = 0; rank < kMostRanks; ++rank) {
    expected.tokens.push_back(tokens + 30 * rank);
    ASSIGN_OR_RETURN(expected.home.emplace_back(),
                     ComputeAtHome(backend, expected.tokens.back(), rank));
  }
  return expected;
}

// Computes two microbatches of the rank, and compares them with those at home.
absl::Status CompareOnRank(backend::Backend& backend, transport::Collective& group,
                           const Expected& all) {
  Memory memory(backend);
  const Weights weights(memory);
  const std::int64_t here = kExperts / group.size(), first = group.index() * here;
  Integers numbers(static_cast<std::size_t>(all.tokens.back() * kChosen));
  std::iota(numbers.begin(), numbers.end(), 0);
  engine::PartCursor cursor;
  ASSIGN_OR_RETURN(const std::unique_ptr<ExpertMeetings> meetings,
                   ExpertMeetings::Create({.group = &group,
                                           .cursor = &cursor,
                                           .backend = &backend,
                                           .share = {.size = group.size(), .index = group.index()},
                                           .experts = kExperts,
                                           .row_numbers = memory.Put(numbers)}));
  SharedExperts::Options options{.meetings = meetings.get(),
                                 .backend = &backend,
                                 .experts = kExperts,
                                 .hidden = kHidden,
                                 .inner = kInner,
                                 .here = {}};
  for (std::int64_t e = first; e < first + here; ++e) {
    options.here.push_back({.gate = {.weight = weights.Of(e, 0)},
                            .up = {.weight = weights.Of(e, 1)},
                            .down = {.weight = weights.Of(e, 2)}});
  }
  SharedExperts experts(options);
  float* const of_all = memory.Unset(group.size() * here * 3 * kMatrix);
  std::vector<SharedExperts::Gradients> gradients;
  for (std::int64_t i = 0; i < group.size() * here; ++i) {
    float* const of_expert = of_all + i * 3 * kMatrix;
    gradients.push_back({of_expert, of_expert + kMatrix, of_expert + 2 * kMatrix});
  }
  std::int32_t* const offsets =
      memory.Put(Integers(static_cast<std::size_t>(group.size() * (here + 1))));
  const std::int64_t tokens = all.tokens[static_cast<std::size_t>(group.index())];
  Results results;
  for (const bool second : {false, true}) {
    Microbatch microbatch(memory, tokens, group.index(), second ? 20 : 10);
    RETURN_IF_ERROR(microbatch.Route(backend));
    const SharedExperts::Routed routed = microbatch.routed();
    float *const output = memory.Zeros(tokens * kHidden), *const d_norm =
                                                              memory.Zeros(tokens * kHidden);
    float* const d_weights = memory.Unset(microbatch.num_pairs());
    ASSIGN_OR_RETURN(const ExpertArrivals* const arrivals, experts.Announce(routed, offsets));
    const Pass pass(memory, microbatch.num_pairs(), arrivals->num_received());
    RETURN_IF_ERROR(
        experts.Forward(routed, *arrivals, microbatch.norm(), pass.stash, pass.scratch));
    RETURN_IF_ERROR(experts.Output(routed, *arrivals, pass.stash, pass.scratch, output));
    // The router's part of the gradient is 0.
    RETURN_IF_ERROR(experts.InputGrad(
        routed, *arrivals,
        {.d_output = microbatch.d_output(), .d_weights = d_weights, .d_norm = d_norm}, pass.stash,
        pass.scratch, [] { return absl::OkStatus(); }));
    RETURN_IF_ERROR(experts.WeightGrad(*arrivals, pass.stash, gradients, second));
    results = {.output = memory.Get(output, tokens * kHidden),
               .d_weights = memory.Get(d_weights, microbatch.num_pairs()),
               .d_norm = memory.Get(d_norm, tokens * kHidden)};
  }
  const Results& expected = all.home[static_cast<std::size_t>(group.index())];
  EXPECT_EQ(results.output, expected.output);
  EXPECT_EQ(results.d_weights, expected.d_weights);
  EXPECT_EQ(results.d_norm, expected.d_norm);
  const Floats sums = memory.Get(of_all, group.size() * here * 3 * kMatrix);
  for (int source = 0; source < group.size(); ++source) {
    const auto mine = sums.begin() + source * here * 3 * kMatrix;
    const auto whole = all.home[static_cast<std::size_t>(source)].gradients.begin();
    EXPECT_TRUE(std::equal(mine, mine + here * 3 * kMatrix, whole + first * 3 * kMatrix))
        << "gradients by the rows of rank " << source;
  }
  return absl::OkStatus();
}

TEST(SharedExperts, HaveTheBitsOfExpertsOnTheTokensOwnRank) {
  const auto home = backend::CreateCpuBackend({}).value();
  const Expected expected = ExpectedBy(*home, 270).value();
  for (const int ranks : {1, 2, 4}) {
    SCOPED_TRACE(ranks);
    ForAllRanks(ranks, [&](transport::Collective& group) -> absl::Status {
      ASSIGN_OR_RETURN(const auto backend, backend::CreateCpuBackend({}));
      return CompareOnRank(*backend, group, expected);
    });
  }
}

TEST(SharedExperts, HaveThemOnDevices) {
  const auto home = backend::CreateCpuBackend({}).value();
  const Expected expected = ExpectedBy(*home, 270).value();
  for (const bool has_nccl : {false, true}) {
    for (const int ranks : {2, 4}) {
      SCOPED_TRACE(ranks);
      ForAllDevices(ranks, has_nccl,
                    [&](transport::nccl::TestRank& rank, int index) -> absl::Status {
                      transport::CollectiveOptions about{.name = "experts", .index = index};
                      for (int other = 0; other < ranks; ++other) about.ranks.emplace_back(other);
                      ASSIGN_OR_RETURN(const auto group, rank.transport->OpenSums(about));
                      EXPECT_EQ(group->stream() != nullptr, has_nccl);
                      const absl::Status status = CompareOnRank(*rank.backend, *group, expected);
                      EXPECT_TRUE(rank.backend->Synchronize().ok());
                      return status;
                    });
    }
  }
}

#ifdef TAKT_EMULATES_CUDA
// The emulated kernels have one caller at a time.
class InTurn final : public backend::ForwardingBackend {
 public:
  // kernels: borrowed.
  explicit InTurn(backend::Backend& kernels) : ForwardingBackend(kernels) {}
  absl::Status Run(const backend::Op& op) override {
    static absl::Mutex mutex(absl::kConstInit);
    absl::MutexLock lock(&mutex);
    return ForwardingBackend::Run(op);
  }
};

TEST(SharedExperts, HaveThemByTheKernelsOfGpus) {
  const auto make_kernels = [] {
    return backend::cuda::CreateEmulatedBackend(emulator::ThreadOrder::kShuffled);
  };
  const auto kernels = make_kernels();
  InTurn home(*kernels);
  const Expected expected = ExpectedBy(home, 50).value();
  for (const int ranks : {2, 4}) {
    SCOPED_TRACE(ranks);
    ForAllRanks(ranks, [&](transport::Collective& group) -> absl::Status {
      const auto of_rank = make_kernels();
      InTurn backend(*of_rank);
      return CompareOnRank(backend, group, expected);
    });
  }
}
#endif

}  // namespace
}  // namespace takt::train
