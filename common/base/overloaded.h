// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace takt {

// One visitor out of several functions, one for each alternative of a variant.
template <class... Handlers>
struct Overloaded : Handlers... {
  using Handlers::operator()...;
};

}  // namespace takt
