// SPDX-License-Identifier: Apache-2.0
#include "worker/engine/bind_program.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <span>
#include <tuple>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::engine {
namespace {

using program::Instruction;
using program::LaneKind;
using program::Op;

bool IsMessage(const Instruction& instruction) {
  return instruction.op == Op::kSend || instruction.op == Op::kRecv;
}

class ProgramBinder {
 public:
  ProgramBinder(const program::Program& program, Compute& compute, const EngineOptions& options)
      : program_(program), compute_(compute), options_(options) {}

  absl::StatusOr<BoundProgram> Bind(std::span<const std::int32_t> origins) {
    ASSIGN_OR_RETURN(bound_.lanes, MakeLanes(program_));
    bound_.prologue.resize(program_.prologue.size());
    bound_.epilogue.resize(program_.epilogue.size());
    if (!origins.empty() && compute_.beside().turns != nullptr)
      RETURN_IF_ERROR(BindBeside(origins));
    RETURN_IF_ERROR(ForEach([this](const Instruction& instruction, Place& place) -> absl::Status {
      if (IsMessage(instruction) || place != nullptr) return absl::OkStatus();
      ASSIGN_OR_RETURN(place, compute_.Bind(instruction));
      return absl::OkStatus();
    }));
    RETURN_IF_ERROR(OpenChannels());
    RETURN_IF_ERROR(ForEach([this](const Instruction& instruction, Place& place) {
      if (IsMessage(instruction)) place = BindMessage(instruction);
      return absl::OkStatus();
    }));
    RETURN_IF_ERROR(AddDeviceParts(program_, bound_.lanes));
    return std::move(bound_);
  }

 private:
  using Place = std::unique_ptr<BoundInstruction>;

  // Binds the B of each pair in which ranks meet. Without meetings no half would ever wait while
  // the other one computes.
  absl::Status BindBeside(std::span<const std::int32_t> origins) {
    for (const auto& lane : bound_.lanes) {
      for (std::size_t i = 1; i < lane->entries.size(); ++i) {
        LaneEntry& forward = lane->entries[i - 1];
        LaneEntry& backward = lane->entries[i];
        if (origins[forward.body_index] != origins[backward.body_index]) continue;
        if (forward.parts.empty() && backward.parts.empty()) continue;
        ASSIGN_OR_RETURN(backward.bound, compute_.BindBeside(*backward.instruction));
        forward.with_next = true;
      }
    }
    return absl::OkStatus();
  }

  absl::Status ForEach(absl::FunctionRef<absl::Status(const Instruction&, Place&)> visit) {
    for (std::size_t i = 0; i < bound_.prologue.size(); ++i)
      RETURN_IF_ERROR(visit(program_.prologue[i], bound_.prologue[i]));
    for (const auto& lane : bound_.lanes) {
      for (LaneEntry& entry : lane->entries)
        RETURN_IF_ERROR(visit(*entry.instruction, entry.bound));
    }
    for (std::size_t i = 0; i < bound_.epilogue.size(); ++i)
      RETURN_IF_ERROR(visit(program_.epilogue[i], bound_.epilogue[i]));
    return absl::OkStatus();
  }

  Lane& LaneOf(const Instruction& instruction) { return *bound_.lanes[instruction.lane.value()]; }

  std::span<std::byte> MessageOf(const Instruction& message) {
    return compute_.SlotBytes(message.op == Op::kSend ? message.reads[0] : message.writes[0]);
  }

  // Only the step of the tag changes from step to step.
  Place BindMessage(const Instruction& message) {
    const Lane& lane = LaneOf(message);
    const std::span<std::byte> data = MessageOf(message);
    transport::MessageTag tag{.generation = options_.generation,
                              .stage = message.stage.value(),
                              .microbatch = message.microbatch.value(),
                              .direction = static_cast<std::int32_t>(lane.description->direction)};
    if (message.op == Op::kSend) {
      const auto send = [&channel = *lane.send, tag, data](StepId step) mutable {
        tag.step = step.value();
        return channel.Send(tag, data);
      };
      return MakeBound(lane.send->stream(), send);
    }
    const auto receive = [&channel = *lane.recv, tag, data](StepId step) mutable {
      tag.step = step.value();
      return channel.Recv(tag, data);
    };
    return MakeBound(lane.recv->stream(), receive);
  }

  // All ranks open their channels in one order, because opening waits for the peer. In different
  // orders the waits could form a circle.
  absl::Status OpenChannels() {
    const auto sender_receiver_direction = [&](const Lane* lane) {
      const bool sends = lane->description->kind == LaneKind::kSend;
      return std::tuple(sends ? program_.pp_rank : lane->description->peer,
                        sends ? lane->description->peer : program_.pp_rank,
                        lane->description->direction);
    };
    std::map<Lane*, std::size_t> max_bytes;
    RETURN_IF_ERROR(ForEach([&](const Instruction& instruction, Place&) {
      if (!IsMessage(instruction)) return absl::OkStatus();
      std::size_t& most = max_bytes[&LaneOf(instruction)];
      most = std::max(most, MessageOf(instruction).size());
      return absl::OkStatus();
    }));
    if (!max_bytes.empty() && (options_.transport == nullptr || !options_.rank_of)) {
      return absl::InvalidArgumentError("a program with messages needs a transport");
    }
    std::vector<Lane*> links;
    for (const auto& [lane, bytes] : max_bytes) links.push_back(lane);
    std::ranges::sort(links, {}, sender_receiver_direction);
    for (Lane* const lane : links) RETURN_IF_ERROR(OpenChannel(*lane, max_bytes[lane]));
    return absl::OkStatus();
  }

  absl::Status OpenChannel(Lane& lane, std::size_t max_bytes) {
    const Rank peer = options_.rank_of(lane.description->peer);
    const std::string name =
        absl::StrCat(options_.channel_prefix, program::DirectionName(lane.description->direction));
    if (lane.description->kind == LaneKind::kSend) {
      ASSIGN_OR_RETURN(lane.send, options_.transport->OpenSend(peer, name, max_bytes));
    } else {
      ASSIGN_OR_RETURN(lane.recv, options_.transport->OpenRecv(peer, name, max_bytes));
    }
    return absl::OkStatus();
  }

  const program::Program& program_;
  Compute& compute_;
  const EngineOptions& options_;
  BoundProgram bound_;
};

}  // namespace

absl::StatusOr<BoundProgram> BindProgram(const program::Program& program,
                                         std::span<const std::int32_t> origins, Compute& compute,
                                         const EngineOptions& options) {
  return ProgramBinder(program, compute, options).Bind(origins);
}

}  // namespace takt::engine
