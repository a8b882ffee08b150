// SPDX-License-Identifier: Apache-2.0
// Describes products to oneDNN, of version 2 as of version 3.
#pragma once

#include <oneapi/dnnl/dnnl.hpp>

namespace takt::backend {

// Returns the kernel for c = a b. Throws dnnl::error. Version 2 wants an operation descriptor,
// which version 3 does not have. Matmul is a parameter so that only the branch of the version
// compiles.
template <class Matmul = dnnl::matmul>
typename Matmul::primitive_desc DescribeMatmul(const dnnl::engine& engine,
                                               const dnnl::memory::desc& a,
                                               const dnnl::memory::desc& b,
                                               const dnnl::memory::desc& c,
                                               const dnnl::primitive_attr& attributes) {
  if constexpr (requires { typename Matmul::desc; }) {
    return typename Matmul::primitive_desc(typename Matmul::desc(a, b, c), attributes, engine);
  } else {
    return typename Matmul::primitive_desc(engine, a, b, c, attributes);
  }
}

}  // namespace takt::backend
