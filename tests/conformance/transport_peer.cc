// SPDX-License-Identifier: Apache-2.0
// The other rank of transport_process_test: a process that echoes what it receives until it is
// killed.
//   transport_peer KIND DIRECTORY MAX_BYTES
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "tests/conformance/transport_kinds.h"
#include "tests/testing/file_rendezvous.h"

namespace takt {
namespace {

absl::Status Echo(const std::string& kind, const std::string& directory, std::size_t max_bytes) {
  testing::FileRendezvous rendezvous(directory);
  auto transport = conformance::MakeTransport(kind, conformance::LoopbackOptions(1), rendezvous);
  if (!transport.ok()) return transport.status();
  auto in = (*transport)->OpenRecv(Rank(0), "there", max_bytes);
  if (!in.ok()) return in.status();
  auto out = (*transport)->OpenSend(Rank(0), "back", max_bytes);
  if (!out.ok()) return out.status();
  std::vector<std::byte> data(max_bytes);
  for (int i = 0;; ++i) {
    const transport::MessageTag tag{.generation = 3, .microbatch = i};
    if (absl::Status status = (*in)->Recv(tag, data); !status.ok()) return status;
    if (absl::Status status = (*out)->Send(tag, data); !status.ok()) return status;
  }
}

}  // namespace
}  // namespace takt

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const absl::Status status = takt::Echo(argv[1], argv[2], std::strtoull(argv[3], nullptr, 10));
  std::fprintf(stderr, "peer: %s\n", status.ToString().c_str());
  return absl::IsUnavailable(status) ? 0 : 1;
}
