// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace takt {

// Makes one visitor out of several functions, one for each alternative of a variant.
template <class... Handlers>
struct Overloaded : Handlers... {
  using Handlers::operator()...;
};
// Clang before version 17 needs this guide.
template <class... Handlers>
Overloaded(Handlers...) -> Overloaded<Handlers...>;

}  // namespace takt
