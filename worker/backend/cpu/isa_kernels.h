// SPDX-License-Identifier: Apache-2.0
// Declares the functions of one instruction set that fill its table; vec.h says how their files are
// compiled.
#pragma once

#include "worker/backend/cpu/kernels.h"

namespace takt::backend::TAKT_ISA {

#define TAKT_KERNEL(result, member, function, parameters) result function parameters;
#include "worker/backend/cpu/kernel_list.inc"

}  // namespace takt::backend::TAKT_ISA
