# SPDX-License-Identifier: Apache-2.0
# Our own kernels: compiled by nvcc into the module, and by the host's compiler against the emulator for tests.
set(TAKT_CUDA_KERNELS
  ${CMAKE_CURRENT_LIST_DIR}/attention_backward.cu
  ${CMAKE_CURRENT_LIST_DIR}/attention_forward.cu
  ${CMAKE_CURRENT_LIST_DIR}/cached_attention.cu
  ${CMAKE_CURRENT_LIST_DIR}/column_sums.cu
  ${CMAKE_CURRENT_LIST_DIR}/elementwise.cu
  ${CMAKE_CURRENT_LIST_DIR}/embedding.cu
  ${CMAKE_CURRENT_LIST_DIR}/expert_products.cu
  ${CMAKE_CURRENT_LIST_DIR}/experts.cu
  ${CMAKE_CURRENT_LIST_DIR}/fp8.cu
  ${CMAKE_CURRENT_LIST_DIR}/fp8_blocks.cu
  ${CMAKE_CURRENT_LIST_DIR}/muon.cu
  ${CMAKE_CURRENT_LIST_DIR}/norm_backward.cu
  ${CMAKE_CURRENT_LIST_DIR}/norms.cu
  ${CMAKE_CURRENT_LIST_DIR}/optimizer.cu
  ${CMAKE_CURRENT_LIST_DIR}/pack.cu
  ${CMAKE_CURRENT_LIST_DIR}/router.cu
  ${CMAKE_CURRENT_LIST_DIR}/sums.cu)
# The part that is plain C++.
set(TAKT_CUDA_KERNELS_HOST ${CMAKE_CURRENT_LIST_DIR}/muon.cc ${CMAKE_CURRENT_LIST_DIR}/scratch.cc)
