// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cuda/arena.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"

namespace takt::backend::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using enum MemoryKind;

constexpr std::int64_t kMebi = std::int64_t{1} << 20;

// Hands out addresses of a device of so many bytes. Regions lie side by side, as a device's may.
class FakeSource final : public MemorySource {
 public:
  explicit FakeSource(std::int64_t bytes) : free_(bytes) {}

  absl::StatusOr<std::byte*> Reserve(std::int64_t bytes) override {
    if (bytes > free_) return absl::ResourceExhaustedError("out of memory");
    free_ -= bytes;
    const std::uintptr_t base = next_;
    next_ += static_cast<std::uintptr_t>(bytes);
    auto* address = reinterpret_cast<std::byte*>(base);  // NOLINT(performance-no-int-to-ptr)
    live_.insert(address);
    bytes_[address] = bytes;
    return address;
  }
  void Release(std::byte* base) override {
    EXPECT_EQ(live_.erase(base), 1u);
    free_ += bytes_.at(base);
  }
  std::int64_t FreeBytes() override { return free_; }

  std::size_t num_live() const { return live_.size(); }

 private:
  std::int64_t free_;
  std::uintptr_t next_ = std::uintptr_t{1} << 40;
  std::set<std::byte*> live_;
  std::map<std::byte*, std::int64_t> bytes_;
};

MemoryBytes Predicted(std::int64_t weights, std::int64_t stash) {
  MemoryBytes bytes;
  bytes[kWeights] = weights;
  bytes[kStash] = stash;
  return bytes;
}

std::unique_ptr<Arena> Create(MemorySource& source, const ArenaOptions& options = {}) {
  return Arena::Create(source, options).value();
}

TEST(Arena, ReservesThePredictionAtOnceAndNoMoreWhileItHolds) {
  FakeSource source(1000 * kMebi);
  const auto arena = Create(source, {.predicted = Predicted(300 * kMebi, 100 * kMebi)});
  EXPECT_EQ(arena->num_reservations(), 1);
  EXPECT_EQ(arena->reserved_bytes(), 400 * kMebi);
  ASSERT_TRUE(arena->Allocate(300 * kMebi, kWeights).ok());
  ASSERT_TRUE(arena->Allocate(100 * kMebi, kStash).ok());
  EXPECT_EQ(arena->num_reservations(), 1);
}

TEST(Arena, ListsItsRegions) {
  FakeSource source(1000 * kMebi);
  const auto arena = Create(source, {.predicted = Predicted(300 * kMebi, 0)});
  std::byte* const first = arena->Allocate(300 * kMebi, kWeights).value();
  std::byte* const second = arena->Allocate(100 * kMebi, kStash).value();
  const std::vector<Arena::Region> regions = arena->regions();
  ASSERT_EQ(regions.size(), 2u);
  EXPECT_EQ(regions[0].base, first);
  EXPECT_EQ(regions[0].bytes, 300 * kMebi);
  EXPECT_EQ(regions[1].base, second);
  EXPECT_EQ(regions[1].bytes, 100 * kMebi);
}

TEST(Arena, LeavesWhatLibrariesTakeBesideIt) {
  FakeSource source(1000 * kMebi);
  const MemoryBytes predicted = Predicted(600 * kMebi, 100 * kMebi);
  EXPECT_TRUE(Arena::Create(source, {.predicted = predicted, .beside_bytes = 300 * kMebi}).ok());
  const auto refused = Arena::Create(source, {.predicted = predicted, .beside_bytes = 301 * kMebi});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr("about 301 MiB"), HasSubstr("300 MiB are free"),
                    HasSubstr("use more stages")));
  EXPECT_EQ(source.num_live(), 0u);
}

TEST(Arena, TellsThatScratchCameBack) {
  FakeSource source(1000 * kMebi);
  const auto arena = Create(source);
  std::byte* const scratch = arena->Allocate(kMebi, kScratch).value();
  std::byte* const stash = arena->Allocate(kMebi, kStash).value();
  EXPECT_EQ(arena->scratch_returns(), 0);
  arena->Free(stash);
  EXPECT_EQ(arena->scratch_returns(), 0);
  arena->Free(scratch);
  EXPECT_EQ(arena->scratch_returns(), 1);
}

TEST(Arena, GivesDisjointAlignedPiecesAndCountsThemByKind) {
  FakeSource source(1000 * kMebi);
  MemoryLedger ledger;
  const auto arena = Create(source, {.ledger = &ledger});
  const std::vector<std::int64_t> sizes = {0, 1, 255, 256, 257, 3 * kMebi};
  std::vector<std::byte*> pieces;
  for (const std::int64_t size : sizes) {
    pieces.push_back(arena->Allocate(size, kStash).value());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pieces.back()) % kArenaAlignment, 0u) << size;
  }
  for (std::size_t i = 1; i < pieces.size(); ++i) {
    EXPECT_GE(pieces[i] - pieces[i - 1], std::max<std::int64_t>(sizes[i - 1], 1));
  }
  // They are four units, one of two, and two huge pages.
  EXPECT_EQ(ledger.Read()[kStash], 6 * 256 + 4 * kMebi);
  EXPECT_EQ(arena->taken(), ledger.Read());
  for (std::byte* piece : pieces) arena->Free(piece);
  EXPECT_EQ(ledger.Read().total(), 0);
}

TEST(Arena, JoinsWhatComesBackInAnyOrder) {
  FakeSource source(64 * kMebi);
  const auto arena = Create(source);
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    std::vector<std::byte*> pieces;
    for (int i = 0; i < 50; ++i) {
      pieces.push_back(
          arena->Allocate(static_cast<std::int64_t>(random() % kMebi), kScratch).value());
    }
    std::shuffle(pieces.begin(), pieces.end(), random);
    for (std::byte* piece : pieces) arena->Free(piece);
    const auto whole = arena->Allocate(64 * kMebi, kWeights);
    ASSERT_TRUE(whole.ok()) << "seed " << seed << ": " << whole.status();
    arena->Free(*whole);
  }
  EXPECT_EQ(arena->num_reservations(), 1);
}

TEST(Arena, NeverJoinsAcrossRegions) {
  FakeSource source(256 * kMebi);
  const auto arena = Create(source);
  std::byte* const first = arena->Allocate(64 * kMebi, kStash).value();
  std::byte* const second = arena->Allocate(64 * kMebi, kStash).value();
  ASSERT_EQ(arena->num_reservations(), 2);
  ASSERT_EQ(second, first + 64 * kMebi);
  arena->Free(first);
  arena->Free(second);
  // 128 MiB lie side by side, but a piece of them would be of two allocations of the device.
  ASSERT_TRUE(arena->Allocate(128 * kMebi, kStash).ok());
  EXPECT_EQ(arena->num_reservations(), 3);
}

TEST(Arena, TakesTheSmallestPieceThatFits) {
  FakeSource source(64 * kMebi);
  const auto arena = Create(source);
  std::byte* const large = arena->Allocate(10 * kMebi, kStash).value();
  std::byte* const fence = arena->Allocate(1, kStash).value();
  std::byte* const small = arena->Allocate(4 * kMebi, kStash).value();
  std::byte* const end = arena->Allocate(1, kStash).value();
  arena->Free(large);
  arena->Free(small);
  EXPECT_EQ(arena->Allocate(3 * kMebi, kStash).value(), small);
  arena->Free(fence);
  arena->Free(end);
}

TEST(Arena, OutOfMemorySaysWhatWasAskedByWhomWhatIsFreeAndWhatWasPredicted) {
  FakeSource source(150 * kMebi);
  const auto arena = Create(source, {.predicted = Predicted(100 * kMebi, 0)});
  ASSERT_TRUE(arena->Allocate(90 * kMebi, kWeights).ok());
  const auto refused = arena->Allocate(80 * kMebi, kStash);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(refused.status().message(),
            "no device memory for 80 MiB of stash: the largest free piece of ours has 10 MiB, the "
            "device has 50 MiB more (out of memory); we hold 90 MiB: weights 90 MiB; the plan "
            "predicted 100 MiB: weights 100 MiB");
  // A refusal takes nothing.
  EXPECT_TRUE(arena->Allocate(50 * kMebi, kStash).ok());
}

TEST(Arena, RefusesAPlanThatDoesNotFit) {
  FakeSource source(100 * kMebi);
  const auto arena = Arena::Create(source, {.predicted = Predicted(80 * kMebi, 40 * kMebi)});
  EXPECT_EQ(arena.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(arena.status().message(),
              AllOf(HasSubstr("it predicts 120 MiB: weights 80 MiB, stash 40 MiB"),
                    HasSubstr("100 MiB are free"), HasSubstr("use more stages")));
}

TEST(Arena, GivesItsRegionsBack) {
  FakeSource source(1000 * kMebi);
  {
    const auto arena = Create(source, {.predicted = Predicted(kMebi, 0)});
    ASSERT_TRUE(arena->Allocate(200 * kMebi, kStash).ok());
    EXPECT_EQ(source.num_live(), 2u);
  }
  EXPECT_EQ(source.num_live(), 0u);
}

}  // namespace
}  // namespace takt::backend::cuda
