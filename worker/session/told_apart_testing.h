// SPDX-License-Identifier: Apache-2.0
// Values of a model's weights and moments by which tests see whether each is where it belongs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <span>
#include <string>

#include "common/model/model.h"
#include "gtest/gtest.h"

namespace takt::session {

// What a rank has of each parameter.
enum StateKind { kWeight, kFirstMoment, kSecondMoment };

// Every element of a model has another value, as far as a test can tell them apart. An f32 has the
// values of small models exactly.
inline float ValueOf(const model::Parameter& parameter, StateKind kind, std::int64_t element) {
  const std::size_t name = std::hash<std::string>()(parameter.name) % 9973;
  return static_cast<float>(element * 3 + kind) + static_cast<float>(name) * 1000;
}

// Expects all elements of the parameter, in its order.
inline void ExpectWhole(const model::Parameter& parameter, StateKind kind,
                        std::span<const float> values) {
  ASSERT_EQ(std::ssize(values), parameter.elements()) << parameter.name;
  for (std::int64_t i = 0; i < parameter.elements(); ++i) {
    ASSERT_EQ(values[static_cast<std::size_t>(i)], ValueOf(parameter, kind, i))
        << parameter.name << " at " << i;
  }
}

}  // namespace takt::session
