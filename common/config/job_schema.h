// SPDX-License-Identifier: Apache-2.0
// Describes job files to editors.
#pragma once

#include <string>

namespace takt::config {

// Returns a JSON schema (draft 2020-12) of job files. It is made from the proto: sections, types,
// enumerators, where `auto`, `null` and lists may stand, and the proto's comments as descriptions.
// Every job fits it that ParseJobFile and ToJobSpec take, as long as its numbers and words are not
// quoted against their type. The schema does not have the rules of ToJobSpec on values. It is one
// line if `indent` is negative.
std::string JobSchema(int indent = 2);

}  // namespace takt::config
