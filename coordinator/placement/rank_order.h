// SPDX-License-Identifier: Apache-2.0
// Decides which worker of a gang gets which rank of its plan, by what messages take between hosts.
#pragma once

#include "common/plan/plan.h"
#include "common/profile/profile.h"
#include "coordinator/placement/placement.h"

namespace takt::placement {

// Returns the workers that get the ranks of the plan, by rank. They are the first ones of the
// gang, which is in the order of SortByRank. With tensor groups they are the first ones that keep
// each group on one host, as far as the hosts have workers enough.
//
// If no message between two of their hosts was measured, they keep their order: rank after rank,
// host after host. Else the hosts get another order, such that the messages and sums of gradients
// of a step take least, each multiplied by what it takes between the two hosts that it gets. The
// workers of a host stay together. They get either consecutive ranks, which are all copies of one
// stage after the other, or the ranks of one pipeline after the other. Both ways are compared.
//
// Up to 8 hosts are compared in all orders. More hosts are put into an order one after the other,
// and then exchanged in pairs, hosts with equally many workers only. That takes a few tenths of a
// second at most, whatever the size. An order that saves less than a microsecond of a step does not
// replace the one that was found before, and the gang's own order is looked at first.
Gang PlaceRanks(const Gang& gang, const plan::Plan& plan, const profile::Profile& measured);

}  // namespace takt::placement
