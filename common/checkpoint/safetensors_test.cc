// SPDX-License-Identifier: Apache-2.0
#include "common/checkpoint/safetensors.h"

#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"

namespace takt::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::span<const std::byte> Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

// A file with this header and as many bytes of data.
std::string File(const std::string& header, std::size_t data_bytes) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i));
  return file + header + std::string(data_bytes, 'x');
}

std::string ErrorOf(const std::string& file) {
  return std::string(SafetensorsView::Parse(Bytes(file), "w").status().message());
}

TEST(Safetensors, ReadsTheReferenceImplementationsFiles) {
  std::ifstream in(
      absl::StrCat(TAKT_SOURCE_DIR, "/tests/golden/models/gpt2-tiny/train_batches.safetensors"));
  const std::string file{std::istreambuf_iterator<char>(in), {}};
  const SafetensorsView view = *SafetensorsView::Parse(Bytes(file), "golden");
  ASSERT_THAT(view.tensors(), SizeIs(2));
  const Tensor* targets = view.Find("targets");
  ASSERT_NE(targets, nullptr);
  EXPECT_EQ(targets->dtype, "I32");
  EXPECT_THAT(targets->shape, ElementsAre(10, 8, 32));
  EXPECT_THAT(targets->bytes, SizeIs(10 * 8 * 32 * 4));
  EXPECT_EQ(view.Find("nothing"), nullptr);
}

TEST(Safetensors, TakesScalarsEmptyTensorsAndMetadata) {
  const std::string file =
      File(R"({"__metadata__":{"format":"pt"},"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
           R"("e":{"data_offsets":[4,4],"shape":[0,7],"dtype":"BF16"}}  )",
           4);
  const SafetensorsView view = *SafetensorsView::Parse(Bytes(file), "w");
  EXPECT_EQ(view.metadata().at("format"), "pt");
  EXPECT_THAT(view.Find("s")->shape, SizeIs(0));
  EXPECT_THAT(view.Find("e")->bytes, SizeIs(0));
}

TEST(Safetensors, NamesEveryDefect) {
  const std::string good = R"("a":{"dtype":"I32","shape":[2],"data_offsets":[0,8]})";
  const struct {
    std::string file;
    const char* message;
  } cases[] = {
      {"short", "w: too short for a safetensors file"},
      {std::string(8, '\xff'), "w: header length 18446744073709551615 is too large"},
      {std::string("\x10\0\0\0\0\0\0\0{}", 10), "w: the file ends inside its header of 16 bytes"},
      {File(" {}", 0), "w: the header must begin with '{'"},
      {File("", 0), "w: the header must begin with '{'"},
      {File("{\"a\":", 0), "w: the header is not JSON at byte 6"},
      {File("{} {}", 0), "w: the header is not JSON at byte 4"},
      {File("{\"a\":[]}", 0), "w: the header must be an object of objects"},
      {File("{" + good + "," + good + "}", 8), "w: the header has \"a\" twice"},
      {File(R"({"a":{"dtype":"I32","dtype":"I32"}})", 0),
       "w: tensor \"a\": \"dtype\" is given twice"},
      {File(R"({"a":{"dtype":"I32","kind":1}})", 0), "w: tensor \"a\": unknown key \"kind\""},
      {File(R"({"a":{"dtype":"I32","shape":[1]}})", 0),
       "w: tensor \"a\": must have dtype, shape and data_offsets"},
      {File(R"({"a":{"dtype":3}})", 0), "w: tensor \"a\": \"dtype\" has a value of the wrong type"},
      {File(R"({"a":{"shape":[-1]}})", 0),
       "w: tensor \"a\": \"shape\" has a value of the wrong type"},
      {File(R"({"a":{"shape":[1.0]}})", 0),
       "w: tensor \"a\": \"shape\" has a value of the wrong type"},
      {File(R"({"a":{"shape":[[1]]}})", 0),
       "w: tensor \"a\": \"shape\" has a value of the wrong type"},
      {File(R"({"a":{"data_offsets":[1]}})", 0),
       "w: tensor \"a\": data_offsets must be two numbers"},
      {File(R"({"__metadata__":{"a":1}})", 0),
       "w: __metadata__: \"a\" has a value of the wrong type"},
      {File(R"({"__metadata__":{"a":"1","a":"2"}})", 0), "w: __metadata__: \"a\" is given twice"},
      {File(R"({"a":{"dtype":"I33","shape":[2],"data_offsets":[0,8]}})", 8),
       "w: tensor \"a\": unknown dtype"},
      {File(R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}})", 1),
       "w: tensor \"a\": its elements do not fill whole bytes"},
      {File(R"({"a":{"dtype":"I32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0),
       "w: tensor \"a\": its shape is too large"},
      {File(R"({"a":{"dtype":"I32","shape":[3],"data_offsets":[0,8]}})", 8),
       "w: tensor \"a\": its shape needs 12 bytes, its offsets are 0 to 8"},
      {File(R"({"a":{"dtype":"I32","shape":[2],"data_offsets":[8,0]}})", 8),
       "w: tensor \"a\": begins at 8 where 0 was expected"},
      {File("{" + good + R"(,"b":{"dtype":"I32","shape":[1],"data_offsets":[4,8]}})", 8),
       "w: tensor \"b\": begins at 4 where 8 was expected"},
      {File("{" + good + R"(,"b":{"dtype":"I32","shape":[1],"data_offsets":[12,16]}})", 16),
       "w: tensor \"b\": begins at 12 where 8 was expected"},
      {File("{" + good + "}", 7), "w: tensor \"a\": the file ends before it does"},
      {File("{" + good + "}", 9), "w: 1 bytes follow the last tensor"},
  };
  for (const auto& [file, message] : cases) EXPECT_EQ(ErrorOf(file), message);
}

RC_GTEST_PROP(Safetensors, ReadsBackWhatItWrote, ()) {
  const auto sizes = *rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 5));
  std::vector<std::string> data;
  for (const int size : sizes)
    data.push_back(*rc::gen::container<std::string>(size * 4, rc::gen::arbitrary<char>()));
  std::vector<Tensor> tensors;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const bool wide = i % 2 == 0;
    tensors.push_back({.name = absl::StrCat("t", i),
                       .dtype = wide ? "F32" : "U8",
                       .shape = {sizes[i], wide ? 1 : 4},
                       .bytes = Bytes(data[i])});
  }
  const std::string file = FormatSafetensors(tensors, {{"format", "pt"}});
  const absl::StatusOr<SafetensorsView> view = SafetensorsView::Parse(Bytes(file), "w");
  RC_ASSERT(view.ok());
  RC_ASSERT(view->tensors().size() == tensors.size());
  for (const Tensor& tensor : tensors) {
    const Tensor* read = view->Find(tensor.name);
    RC_ASSERT(read != nullptr);
    RC_ASSERT(read->dtype == tensor.dtype && read->shape == tensor.shape);
    RC_ASSERT(std::equal(read->bytes.begin(), read->bytes.end(), tensor.bytes.begin(),
                         tensor.bytes.end()));
  }
}

// Any change of one byte of a header is refused or still describes bytes inside the file.
RC_GTEST_PROP(Safetensors, NeverPointsOutsideTheFile, ()) {
  std::string file = File(
      R"({"a":{"dtype":"I32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}})",
      11);
  file[*rc::gen::inRange<std::size_t>(0, file.size())] = *rc::gen::arbitrary<char>();
  const absl::StatusOr<SafetensorsView> view = SafetensorsView::Parse(Bytes(file), "w");
  if (!view.ok()) return;
  for (const Tensor& tensor : view->tensors()) {
    RC_ASSERT(tensor.bytes.data() >= Bytes(file).data());
    RC_ASSERT(tensor.bytes.data() + tensor.bytes.size() <= Bytes(file).data() + file.size());
  }
}

}  // namespace
}  // namespace takt::checkpoint
