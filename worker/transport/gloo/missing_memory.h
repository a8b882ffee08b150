// SPDX-License-Identifier: Apache-2.0
// Stands in for gloo/common/memory.h, which Debian's libgloo-dev leaves out although Gloo's own
// headers include it (CMakeLists.txt gives it that name). It has what a class derived from Gloo's
// pair needs: names, and a layout that agrees with the library's. See adopted_pair.cc.
#pragma once

#include <memory>

namespace gloo {

template <class T>
class NonOwningPtr;

template <class T>
class WeakNonOwningPtr {
  std::weak_ptr<T> pointer_;
};

}  // namespace gloo
