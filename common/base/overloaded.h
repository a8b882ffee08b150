// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace takt {

// One visitor out of several functions, one for each alternative of a variant.
template <class... Handlers>
struct Overloaded : Handlers... {
  using Handlers::operator()...;
};
// Needed by clang before version 17.
template <class... Handlers>
Overloaded(Handlers...) -> Overloaded<Handlers...>;

}  // namespace takt
