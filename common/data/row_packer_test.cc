// SPDX-License-Identifier: Apache-2.0
#include "common/data/row_packer.h"

#include <map>
#include <span>
#include <vector>

#include "common/data/documents.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"

namespace takt::data {
namespace {

using testing::ElementsAre;

TrainingDocument Document(std::vector<std::int32_t> ids) {
  TrainingDocument document;
  document.Append(ids, /*scored=*/true);
  return document;
}

TEST(RowPacker, FillsRowsWithWhatFits) {
  RowPacker packer(4);
  packer.Add(Document({1, 2, 3}));
  packer.Add(Document({4, 5}));
  packer.Add(Document({6}));
  packer.Finish();
  EXPECT_THAT(packer.tokens(), ElementsAre(1, 2, 3, 6, 4, 5, 0, 0));
  EXPECT_THAT(packer.targets(), ElementsAre(2, 3, -100, -100, 5, -100, -100, -100));
  EXPECT_THAT(packer.documents(), ElementsAre(0, 0, 0, 1, 0, 0, 1, 1));
  EXPECT_EQ(packer.padding(), 2);
}

// Every document is there once and whole, and rows say where it begins.
RC_GTEST_PROP(RowPacker, LosesNothing, ()) {
  const auto context = *rc::gen::inRange(1, 20);
  const auto count = *rc::gen::inRange(1, 200);
  RowPacker packer(context);
  std::map<std::vector<std::int32_t>, int> left;
  std::int64_t tokens = 0;
  for (int i = 0; i < count; ++i) {
    std::vector<std::int32_t> ids(
        *rc::gen::inRange<std::size_t>(1, static_cast<std::size_t>(context) + 1));
    for (std::int32_t& id : ids) id = *rc::gen::inRange(1, 5);
    ++left[ids];
    tokens += std::ssize(ids);
    packer.Add(Document(ids));
  }
  packer.Finish();
  const auto size = static_cast<std::size_t>(context);
  RC_ASSERT(packer.tokens().size() % size == 0);
  RC_ASSERT(std::ssize(packer.tokens()) == tokens + packer.padding());
  for (std::size_t begin = 0; begin < packer.tokens().size(); begin += size) {
    const std::span row = std::span(packer.documents()).subspan(begin, size);
    RC_ASSERT(FirstWrongId(row) == context);
    std::vector<std::int32_t> starts(size);
    StartsFromIds(row, starts);
    for (std::size_t t = 0; t < size;) {
      std::size_t end = t + 1;
      while (end < size && starts[end] == starts[t]) ++end;
      const auto first = packer.tokens().begin() + static_cast<std::ptrdiff_t>(begin + t);
      const std::vector<std::int32_t> ids(first, first + static_cast<std::ptrdiff_t>(end - t));
      if (ids.front() != 0) --left[ids];  // else it is padding
      t = end;
    }
  }
  for (const auto& [ids, number] : left) RC_ASSERT(number == 0);
}

}  // namespace
}  // namespace takt::data
