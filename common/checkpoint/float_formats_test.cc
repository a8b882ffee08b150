// SPDX-License-Identifier: Apache-2.0
#include "common/checkpoint/float_formats.h"

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace takt::checkpoint {
namespace {

float Read(FloatFormat format, std::uint16_t half) {
  float value = 0;
  ReadFloats(format, std::as_bytes(std::span(&half, 1)), std::span(&value, 1));
  return value;
}

std::uint16_t Write(FloatFormat format, float value) {
  std::uint16_t half = 0;
  WriteFloats(format, std::span(&value, 1), std::as_writable_bytes(std::span(&half, 1)));
  return half;
}

TEST(FloatFormats, EveryHalfComesBackAsItWas) {
  for (const FloatFormat format : {FloatFormat::kBf16, FloatFormat::kF16}) {
    for (int i = 0; i < 0x10000; ++i) {
      const auto half = static_cast<std::uint16_t>(i);
      ASSERT_EQ(Write(format, Read(format, half)), half) << DtypeOf(format) << " " << i;
    }
  }
}

TEST(FloatFormats, ValuesAreThoseOfIeee754) {
  EXPECT_EQ(Read(FloatFormat::kBf16, 0x3f80), 1.0F);
  EXPECT_EQ(Read(FloatFormat::kBf16, 0xc049), -3.140625F);
  EXPECT_EQ(Read(FloatFormat::kF16, 0x3c00), 1.0F);
  EXPECT_EQ(Read(FloatFormat::kF16, 0xfbff), -65504.0F);
  EXPECT_EQ(Read(FloatFormat::kF16, 0x0400), 0x1p-14F);
  EXPECT_EQ(Read(FloatFormat::kF16, 0x0001), 0x1p-24F);
  EXPECT_EQ(Read(FloatFormat::kF16, 0x03ff), 1023 * 0x1p-24F);
  EXPECT_TRUE(std::signbit(Read(FloatFormat::kF16, 0x8000)));
  EXPECT_TRUE(std::isinf(Read(FloatFormat::kF16, 0x7c00)));
  EXPECT_TRUE(std::isnan(Read(FloatFormat::kF16, 0x7c01)));
}

// Rounds to the even neighbour at halfway, and to the nearer one beside it.
TEST(FloatFormats, RoundsToNearestEven) {
  for (const FloatFormat format : {FloatFormat::kBf16, FloatFormat::kF16}) {
    const std::uint16_t largest = format == FloatFormat::kBf16 ? 0x7f7f : 0x7bff;
    for (std::uint16_t half = 0; half < largest; ++half) {
      const float middle = static_cast<float>(
          (double{Read(format, half)} + Read(format, static_cast<std::uint16_t>(half + 1))) / 2);
      const auto up = static_cast<std::uint16_t>(half + 1);
      ASSERT_EQ(Write(format, middle), half % 2 == 0 ? half : up) << DtypeOf(format) << half;
      ASSERT_EQ(Write(format, std::nextafter(middle, 0.0F)), half) << DtypeOf(format) << half;
      ASSERT_EQ(Write(format, std::nextafter(middle, std::numeric_limits<float>::max())), up)
          << DtypeOf(format) << half;
    }
  }
}

TEST(FloatFormats, WhatIsTooLargeIsInfinite) {
  EXPECT_EQ(Write(FloatFormat::kF16, 65519.0F), 0x7bff);
  EXPECT_EQ(Write(FloatFormat::kF16, 65520.0F), 0x7c00);
  EXPECT_EQ(Write(FloatFormat::kF16, -1e30F), 0xfc00);
  EXPECT_EQ(Write(FloatFormat::kBf16, std::numeric_limits<float>::max()), 0x7f80);
}

TEST(FloatFormats, NansStayNans) {
  for (const FloatFormat format : {FloatFormat::kBf16, FloatFormat::kF16}) {
    EXPECT_TRUE(std::isnan(Read(format, Write(format, std::bit_cast<float>(0x7f800001)))));
    EXPECT_TRUE(std::isnan(Read(format, Write(format, std::bit_cast<float>(0xffffffff)))));
  }
}

TEST(FloatFormats, HaveTheNamesOfSafetensorsAndTorch) {
  for (const FloatFormat format : kFloatFormats) {
    EXPECT_EQ(FloatFormatOfDtype(DtypeOf(format)), format);
    EXPECT_EQ(FloatFormatOfTorchDtype(TorchDtypeOf(format)), format);
  }
  EXPECT_EQ(FloatFormatOfDtype("F64"), std::nullopt);
  EXPECT_EQ(FloatFormatOfTorchDtype("float64"), std::nullopt);
}

}  // namespace
}  // namespace takt::checkpoint
