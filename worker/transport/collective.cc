// SPDX-License-Identifier: Apache-2.0
#include "worker/transport/collective.h"

#include "common/base/status.h"

namespace takt::transport {

absl::Status Collective::AllReduceTerms(StepId step, std::span<float> data, const Terms& terms) {
  if (terms.count == 1) return AllReduceSum(step, data);
  return absl::UnimplementedError("this group adds one term of each rank");
}

absl::Status Collective::ReduceScatterSum(StepId step, Parts parts) {
  TAKT_CHECK(parts.size() == static_cast<std::size_t>(size()));
  for (const std::span<float> part : parts) RETURN_IF_ERROR(AllReduceSum(step, part));
  return absl::OkStatus();
}

absl::Status Collective::ReduceScatterTerms(StepId step, Parts parts, const Terms& terms) {
  if (terms.count == 1) return ReduceScatterSum(step, parts);
  for (const std::span<float> part : parts) RETURN_IF_ERROR(AllReduceTerms(step, part, terms));
  return absl::OkStatus();
}

absl::Status Collective::ReduceScatterTree(StepId, Parts) {
  return absl::UnimplementedError("this group does not add along a tree");
}

absl::Status Collective::AllGatherParts(StepId step, Parts parts) {
  std::vector<std::span<std::byte>> bytes;
  for (const std::span<float> part : parts) bytes.push_back(std::as_writable_bytes(part));
  return AllGather(step, bytes);
}

absl::Status Collective::Pass(StepId, Sent, Received) {
  return absl::UnimplementedError("bytes do not pass between any two ranks of this group");
}

absl::Status Collective::Broadcast(StepId step, int root, std::span<std::byte> data) {
  TAKT_CHECK(root >= 0 && root < size());
  const auto ranks = static_cast<std::size_t>(size());
  std::vector<std::span<const std::byte>> sent(ranks);
  std::vector<std::span<std::byte>> received(ranks);
  if (index() == root) {
    sent.assign(ranks, data);
  } else {
    received[static_cast<std::size_t>(root)] = data;
  }
  return Pass(step, sent, received);
}

absl::Status Collective::AllGather(StepId step, Received parts) {
  const auto ranks = static_cast<std::size_t>(size());
  TAKT_CHECK(parts.size() == ranks);
  const std::vector<std::span<const std::byte>> sent(ranks,
                                                     parts[static_cast<std::size_t>(index())]);
  return Pass(step, sent, parts);
}

absl::Status Collective::SendTo(StepId step, int root, std::span<const std::byte> mine,
                                Received parts) {
  TAKT_CHECK(root >= 0 && root < size());
  const auto ranks = static_cast<std::size_t>(size());
  std::vector<std::span<const std::byte>> sent(ranks);
  const std::vector<std::span<std::byte>> nothing(ranks);
  if (index() == root) {
    TAKT_CHECK(parts.size() == ranks);
    return Pass(step, sent, parts);
  }
  sent[static_cast<std::size_t>(root)] = mine;
  return Pass(step, sent, nothing);
}

}  // namespace takt::transport
