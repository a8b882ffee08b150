// SPDX-License-Identifier: Apache-2.0
#undef _FORTIFY_SOURCE  // its longjmp refuses to go to another stack
#include "worker/backend/cuda/emulator/emulator.h"

#include <ucontext.h>

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <limits>
#include <memory>
#include <new>
#include <numeric>
#include <random>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace takt::emulator {
namespace {

constexpr std::size_t kStackBytes = std::size_t{256} << 10;
constexpr std::size_t kSharedAlignment = 128;

enum class State { kReady, kAtWarpBarrier, kAtBlockBarrier, kAsleep, kDone };

// A stack, as AddressSanitizer is informed of it when it is left or entered.
struct Stack {
  const void* bottom = nullptr;
  std::size_t bytes = 0;
  void* left = nullptr;  // what the sanitizer keeps while the stack is not in use
};

void BeginSwitch([[maybe_unused]] Stack* from, [[maybe_unused]] const Stack& to) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(from != nullptr ? &from->left : nullptr, to.bottom, to.bytes);
#endif
}

void EndSwitch([[maybe_unused]] const Stack& entered, [[maybe_unused]] Stack* from) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(entered.left, from != nullptr ? &from->bottom : nullptr,
                                  from != nullptr ? &from->bytes : nullptr);
#endif
}

// A flow of execution that is not running: where it was left, or where it begins.
struct Context {
  ucontext_t begin{};
  bool has_begun = false;
  std::jmp_buf left{};
};

// Leaves `from`, and returns once somebody switches back to it. swapcontext alone would do, but it
// asks the kernel for the mask of signals each time, and most of a test's time went there.
void Switch(Context& from, Context& to) {
#if defined(__SANITIZE_ADDRESS__)
  to.has_begun = true;
  swapcontext(&from.begin, &to.begin);
#else
  if (_setjmp(from.left) != 0) return;
  if (to.has_begun) _longjmp(to.left, 1);
  to.has_begun = true;
  setcontext(&to.begin);
#endif
}

// It has one thread of each block of its slot in turn.
struct Fiber {
  std::unique_ptr<std::byte[]> memory{new std::byte[kStackBytes]};
  Stack stack;
  Context context;
  State state = State::kReady;
  dim3 thread;
  // The values of the last two exchanges. Slower lanes still read the older one.
  std::uint64_t given[2] = {};
  unsigned exchanges = 0;
};

struct FreeShared {
  void operator()(std::byte* p) const { ::operator delete (p, std::align_val_t{kSharedAlignment}); }
};

// It runs one block after another. Blocks in different slots run at the same time.
struct Slot {
  std::deque<Fiber> fibers;  // kept for the next block
  std::unique_ptr<std::byte, FreeShared> shared;
  dim3 block;
  bool has_block = false;
};

// There is one machine. The functions below run on the thread of the caller of RunGrid.
struct Machine {
  ThreadOrder order = ThreadOrder::kForward;
  std::size_t most_shared = std::numeric_limits<std::size_t>::max();
  bool only_last_block = false;
  unsigned blocks_at_once = 1;
  std::int64_t* count = nullptr;
  std::mt19937 random{1};
  std::deque<Slot> slots;
  Slot* slot = nullptr;  // of the running fiber
  const std::function<void()>* body = nullptr;
  Context scheduler{.has_begun = true};
  Stack scheduler_stack;
  Fiber* running = nullptr;

  std::vector<unsigned> Permutation(unsigned count) {
    std::vector<unsigned> numbers(count);
    std::iota(numbers.begin(), numbers.end(), 0U);
    if (order == ThreadOrder::kBackward) std::reverse(numbers.begin(), numbers.end());
    if (order == ThreadOrder::kShuffled) std::shuffle(numbers.begin(), numbers.end(), random);
    return numbers;
  }
};
Machine machine;

void WaitAt(State barrier) {
  Fiber& fiber = *machine.running;
  fiber.state = barrier;
  BeginSwitch(&fiber.stack, machine.scheduler_stack);
  Switch(fiber.context, machine.scheduler);
  EndSwitch(fiber.stack, &machine.scheduler_stack);
}

void FiberMain() {
  EndSwitch({}, &machine.scheduler_stack);
  while (true) {
    (*machine.body)();
    WaitAt(State::kDone);
  }
}

void Start(Fiber& fiber, unsigned thread) {
  fiber.state = State::kReady;
  fiber.thread = {thread, 0, 0};
  fiber.exchanges = 0;
  if (fiber.context.has_begun) return;
  fiber.stack = {.bottom = fiber.memory.get(), .bytes = kStackBytes};
  ucontext_t& begin = fiber.context.begin;
  getcontext(&begin);
  begin.uc_stack.ss_sp = fiber.memory.get();
  begin.uc_stack.ss_size = kStackBytes;
  makecontext(&begin, FiberMain, 0);
}

// Runs the fiber until its next barrier, or its thread's end.
void Resume(Fiber& fiber) {
  machine.running = &fiber;
  place.thread = fiber.thread;
  BeginSwitch(&machine.scheduler_stack, fiber.stack);
  Switch(machine.scheduler, fiber.context);
  EndSwitch(machine.scheduler_stack, nullptr);
}

// Lets fibers [begin, end) of the slot go on if all of them wait at `barrier`.
bool Release(Slot& slot, unsigned begin, unsigned end, State barrier) {
  for (unsigned i = begin; i < end; ++i) {
    if (slot.fibers[i].state != barrier) return false;
  }
  for (unsigned i = begin; i < end; ++i) slot.fibers[i].state = State::kReady;
  return true;
}

void StartBlock(Slot& slot, const Grid& grid, unsigned block) {
  const auto [x, y, z] = grid.blocks;
  slot.block = {block % x, block / x % y, block / x / y};
  slot.has_block = true;
  std::memset(slot.shared.get(), 0xff, grid.shared_bytes);  // NaN
  for (unsigned t = 0; t < grid.threads; ++t) Start(slot.fibers[t], t);
}

// Runs every thread of the slot's block until it waits. Returns whether the block went on: a thread
// came from a barrier, or all have ended.
bool RunBlock(Slot& slot, unsigned threads) {
  machine.slot = &slot;
  place.block = slot.block;
  for (const unsigned t : machine.Permutation(threads)) {
    if (slot.fibers[t].state == State::kReady) Resume(slot.fibers[t]);
  }
  if (Release(slot, 0, threads, State::kDone)) {
    slot.has_block = false;
    return true;
  }
  bool released = Release(slot, 0, threads, State::kAtBlockBarrier), asleep = false;
  for (unsigned t = 0; t < threads; t += kWarp) {
    released = Release(slot, t, t + kWarp, State::kAtWarpBarrier) || released;
  }
  for (unsigned t = 0; t < threads; ++t) {
    asleep = Release(slot, t, t + 1, State::kAsleep) || asleep;
  }
  if (!released && !asleep)
    Die("threads of a block wait at different barriers, or some have ended");
  return released;
}

// Makes `count` slots for blocks of the grid.
void MakeSlots(const Grid& grid, unsigned count) {
  if (machine.slots.size() < count) machine.slots.resize(count);
  for (unsigned i = 0; i < count; ++i) {
    Slot& slot = machine.slots[i];
    if (slot.fibers.size() < grid.threads) slot.fibers.resize(grid.threads);
    slot.shared.reset(static_cast<std::byte*>(
        ::operator new (grid.shared_bytes, std::align_val_t{kSharedAlignment})));
  }
}

}  // namespace

void Die(const char* why) {
  std::fprintf(stderr, "emulator: %s (block %u %u %u, thread %u)\n", why, place.block.x,
               place.block.y, place.block.z, place.thread.x);
  std::abort();
}

void SetThreadOrder(ThreadOrder order) { machine.order = order; }

void SetMostShared(std::size_t bytes) { machine.most_shared = bytes; }

void SetOnlyLastBlock(bool only) { machine.only_last_block = only; }

void SetBlocksAtOnce(unsigned count) { machine.blocks_at_once = count; }

void CountGrids(std::int64_t* count) { machine.count = count; }

void RunGrid(const Grid& grid, const std::function<void()>& body) {
  if (machine.count != nullptr) {
    ++*machine.count;
    return;
  }
  if (grid.threads == 0 || grid.threads > 1024 || grid.threads % kWarp != 0) {
    Die("a block that no number of warps fills");
  }
  if (grid.shared_bytes > machine.most_shared) Die("a block with more shared memory than there is");
  machine.body = &body;
  const unsigned count = grid.blocks.x * grid.blocks.y * grid.blocks.z;
  const std::vector<unsigned> blocks =
      machine.only_last_block ? std::vector<unsigned>{count - 1} : machine.Permutation(count);
  const unsigned num_slots = std::min(machine.blocks_at_once, static_cast<unsigned>(blocks.size()));
  MakeSlots(grid, num_slots);
  std::size_t next = 0, ended = 0;
  // Returns whether the slot's block, or a new one, went on.
  const auto run = [&](unsigned i) {
    Slot& slot = machine.slots[i];
    if (!slot.has_block && next < blocks.size()) StartBlock(slot, grid, blocks[next++]);
    if (!slot.has_block || !RunBlock(slot, grid.threads)) return false;
    ended += slot.has_block ? 0 : 1;
    return true;
  };
  while (ended < blocks.size()) {
    const std::vector<unsigned> order = machine.Permutation(num_slots);
    if (std::none_of(order.begin(), order.end(), run)) Die("all blocks that run wait for others");
  }
}

void* SharedMemory() { return machine.slot->shared.get(); }
void WaitForBlock() { WaitAt(State::kAtBlockBarrier); }
void WaitForWarp() { WaitAt(State::kAtWarpBarrier); }
void Sleep() { WaitAt(State::kAsleep); }

std::array<std::uint64_t, kWarp> ExchangeAll(std::uint64_t value) {
  Fiber& fiber = *machine.running;
  const unsigned slot = fiber.exchanges++ % 2;
  fiber.given[slot] = value;
  WaitForWarp();
  const unsigned first = fiber.thread.x / kWarp * kWarp;
  std::array<std::uint64_t, kWarp> given{};
  for (unsigned lane = 0; lane < kWarp; ++lane)
    given[lane] = machine.slot->fibers[first + lane].given[slot];
  return given;
}

}  // namespace takt::emulator
