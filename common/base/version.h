// SPDX-License-Identifier: Apache-2.0
// Which program this is, and which protocol it speaks. The two versions rise independently.
#pragma once

namespace takt {

inline constexpr char kTaktVersion[] = TAKT_VERSION;

// The parts of CUDA that were built in: "cuda 13.0, nccl 2.28.9, sm_80 sm_90 compute_90", or
// "no cuda".
extern const char* const kTaktBuild;

// The version of the protocol between coordinator and workers (takt.v1.AttachmentService, and what
// the workers of one job send to each other). It rises with each change that a peer must know of.
inline constexpr int kProtocolVersion = 15;

// The constants below are in the order of their versions. A new one goes to the end.

// The floor. A coordinator accepts workers that speak a version from here to its own, so every
// later version must work with this one. Programs before the floor all said 1 while the messages
// were still changing: that number does not tell what such a worker understands, so it is refused.
inline constexpr int kOldestProtocolVersion = 2;

// From this version on a worker runs programs that spread the vocabulary.
inline constexpr int kSpreadProtocolVersion = 3;

// From this version on a worker keeps copies of the state in memory (takt.v1.MemoryCopies) as it
// does today. Workers of version 3 send them to each other in another form.
inline constexpr int kCopiesProtocolVersion = 4;

// From this version on a worker knows all fields of a job; those that came with it are listed in
// common/plan/ways.cc.
inline constexpr int kAllFieldsProtocolVersion = 4;

// From this version on a worker can meet the others sparsely (takt.v1.Binding.sparse_meeting).
inline constexpr int kSparseProtocolVersion = 4;

// From this version on a worker can do everything that a plan may choose. common/plan/ways.cc lists
// what this version added.
inline constexpr int kAllWaysProtocolVersion = 5;

// From this version on a worker passes messages over TCP through plain sockets
// (takt.v1.Binding.plain_sockets).
inline constexpr int kPlainSocketsProtocolVersion = 5;

// From this version on a worker can pass the residual stream between layers in bf16
// (takt.v1.JobSpec.residual).
inline constexpr int kResidualProtocolVersion = 6;

// From this version on a worker keeps copies in memory of layers that ranks split, of experts that
// they share, and of kernel plans.
inline constexpr int kAllCopiesProtocolVersion = 6;

// From this version on a replica can have several leaves (takt.v1.ParallelismSpec.data_leaves).
inline constexpr int kDataLeavesProtocolVersion = 7;

// From this version on ranks of bf16 jobs that share the optimizer's state have shards of matrices
// in f32. They gather them before the first step, and for the writers of layers. Older ones don't.
inline constexpr int kPackedShardsProtocolVersion = 8;

// From this version on a worker feeds errors back (takt.v1.OptimizerSpec.error_feedback).
inline constexpr int kErrorFeedbackProtocolVersion = 9;

// From this version on a worker with GPUs also computes the residual stream inside a layer in bf16,
// where layers pass it on in bf16. Kernel plans of older workers have other products.
inline constexpr int kBf16StreamProtocolVersion = 10;

// From this version on products of a worker with GPUs read weights in bf16 as they are stored, and
// some read several as one. Kernel plans of older workers have other products.
inline constexpr int kStoredWeightsProtocolVersion = 11;

// From this version on the ranks of a large group that shares the optimizer's state connect with
// their neighbours alone (takt.v1.Binding.sharing_chains).
inline constexpr int kSharingChainsProtocolVersion = 12;

// From this version on workers with GPUs share experts.
inline constexpr int kGpuExpertsProtocolVersion = 13;

// From this version on a worker copies messages between GPUs of its host
// (takt.v1.TRANSPORT_KIND_CUDA_IPC).
inline constexpr int kCudaIpcProtocolVersion = 14;

// From this version on the head's products on GPUs go over slices of rows. Kernel plans of older
// ones have other products.
inline constexpr int kHeadSlicesProtocolVersion = 14;

// From this version on a worker foresees rows of a spread vocabulary (program::Op::kSpeculate).
inline constexpr int kForeseenRowsProtocolVersion = 15;

}  // namespace takt
