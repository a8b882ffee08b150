// SPDX-License-Identifier: Apache-2.0
// Larger rearrangements of an order of F and I.
#pragma once

#include "common/search/problem.h"

namespace takt::search {

// Rearranges an order: a rank that would wait runs a later action of its row instead, if the input
// of that is there and what the row still wants to hold leaves room for it. `window`: how many
// actions ahead the rank looks.
Rows Compact(const Problem& problem, const Rows& rows, int window);

// Makes an order for more microbatches. It repeats `period` microbatches of `rows`, from `first`
// on, as often as needed, at the distance that they have in time. The actions of `rows` begin at
// `starts`. first + period < microbatches of every holder of `from`.
Rows Extend(const Problem& from, const Rows& rows, const std::vector<std::vector<double>>& starts,
            const Problem& to, int first, int period);

}  // namespace takt::search
