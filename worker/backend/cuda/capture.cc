// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cuda/capture.h"

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/base/const_init.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/status.h"
#include "worker/backend/cuda/device.h"

namespace takt::backend::cuda {
namespace {

// Threads that capture hold it shared.
absl::Mutex captures(absl::kConstInit);
thread_local bool captures_here = false;

struct DestroyGraph {
  void operator()(cudaGraph_t graph) const { static_cast<void>(cudaGraphDestroy(graph)); }
};
using Graph = std::unique_ptr<CUgraph_st, DestroyGraph>;

// The driver frees a graph that is under way when it is done.
struct DestroyExecutable {
  void operator()(cudaGraphExec_t graph) const { static_cast<void>(cudaGraphExecDestroy(graph)); }
};
using Executable = std::unique_ptr<CUgraphExec_st, DestroyExecutable>;

class CapturedGraph final : public Recording {
 public:
  // nodes: how many launches it has.
  CapturedGraph(Executable graph, std::size_t nodes, int device, CudaStream& stream,
                const Arena& arena)
      : graph_(std::move(graph)),
        nodes_(static_cast<std::int64_t>(nodes)),
        device_(device),
        stream_(stream),
        arena_(arena),
        scratch_returns_(arena.scratch_returns()) {}
  ~CapturedGraph() override { static_cast<void>(cudaSetDevice(device_)); }

  absl::Status Replay() override {
    if (arena_.scratch_returns() != scratch_returns_) {
      return absl::FailedPreconditionError("scratch memory has moved since ops were recorded");
    }
    RETURN_IF_ERROR(ToStatus(cudaSetDevice(device_), "choosing the device"));
    RETURN_IF_ERROR(stream_.MakeRoom(nodes_));
    return ToStatus(cudaGraphLaunch(graph_.get(), stream_.get()), "launching a graph");
  }

 private:
  const Executable graph_;
  const std::int64_t nodes_;
  const int device_;
  CudaStream& stream_;
  const Arena& arena_;
  const std::int64_t scratch_returns_;
};

// If an op failed, its error explains more than the error of the capture.
absl::StatusOr<Graph> EndCapture(cudaStream_t stream, const absl::Status& given) {
  cudaGraph_t captured = nullptr;
  const cudaError_t error = cudaStreamEndCapture(stream, &captured);
  Graph graph(captured);
  // This clears the error, which is reported below.
  if (error != cudaSuccess) static_cast<void>(cudaGetLastError());
  RETURN_IF_ERROR(given);
  if (error != cudaSuccess || graph == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "ending a capture: ", cudaGetErrorString(error), " (", cudaGetErrorName(error), ")"));
  }
  return graph;
}

}  // namespace

NoCapture::NoCapture() { captures.Lock(); }
NoCapture::~NoCapture() { captures.Unlock(); }

absl::Status WaitForDevice() {
  if (captures_here) {
    return absl::FailedPreconditionError("waiting for the device cannot be recorded");
  }
  const NoCapture none;
  return ToStatus(cudaDeviceSynchronize(), "waiting for the device");
}

bool Captures() { return captures_here; }

absl::StatusOr<std::unique_ptr<Recording>> Capture(int device, CudaStream& stream,
                                                   const Arena& arena,
                                                   absl::FunctionRef<absl::Status()> ops) {
  if (captures_here) return absl::FailedPreconditionError("a recording cannot be recorded");
  RETURN_IF_ERROR(ToStatus(cudaSetDevice(device), "choosing the device"));
  absl::ReaderMutexLock lock(&captures);
  RETURN_IF_ERROR(ToStatus(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal),
                           "beginning a capture"));
  captures_here = true;
  const absl::Status given = ops();
  captures_here = false;
  ASSIGN_OR_RETURN(const Graph graph, EndCapture(stream.get(), given));
  std::size_t nodes = 0;
  RETURN_IF_ERROR(ToStatus(cudaGraphGetNodes(graph.get(), nullptr, &nodes), "counting launches"));
  cudaGraphExec_t made = nullptr;
  RETURN_IF_ERROR(ToStatus(cudaGraphInstantiate(&made, graph.get(), 0), "making a graph"));
  Executable executable(made);
  // The upload makes the first launch cost no more than later ones.
  RETURN_IF_ERROR(ToStatus(cudaGraphUpload(executable.get(), stream.get()), "uploading a graph"));
  return std::make_unique<CapturedGraph>(std::move(executable), nodes, device, stream, arena);
}

}  // namespace takt::backend::cuda
