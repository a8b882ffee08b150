// SPDX-License-Identifier: Apache-2.0
#include "common/config/job_tree.h"

#include "common/base/status.h"
#include "gtest/gtest.h"

namespace takt::config {
namespace {

constexpr char kText[] = "name: a\nmodel:\n  heads: 3\ndata:\n  train: {path: x}\n";

std::string WhereOf(const std::string& field, std::vector<std::string> overrides = {}) {
  const absl::Status status = InvalidField({.field = field, .rule = "is wrong"});
  const auto errors = FieldErrorsOf(
      LocateErrors(status, kText, {.name = "job.yaml", .overrides = std::move(overrides)}));
  return errors.size() == 1 ? errors[0].where : "";
}

TEST(LocateErrors, PointsAtTheValueOfAField) { EXPECT_EQ(WhereOf("model.heads"), "job.yaml:3:10"); }

TEST(LocateErrors, PointsAtTheSectionThatLacksAField) {
  EXPECT_EQ(WhereOf("model.hidden"), "job.yaml:2:1");
  EXPECT_EQ(WhereOf("batch.global"), "job.yaml:1:1");
}

TEST(LocateErrors, FindsAnElementOfAListWrittenAsOneValue) {
  EXPECT_EQ(WhereOf("data.train[0].path"), "job.yaml:5:17");
  EXPECT_EQ(WhereOf("data.train.path"), "job.yaml:5:17");
}

TEST(LocateErrors, NamesTheOverrideThatBroughtTheValue) {
  EXPECT_EQ(WhereOf("model.heads", {"model.heads=5"}), "--set model.heads=5");
}

TEST(LocateErrors, KeepsAPlaceThatIsKnown) {
  const absl::Status status = InvalidField({.field = "model.heads", .where = "config.json:1:1"});
  EXPECT_EQ(FieldErrorsOf(LocateErrors(status, kText, {})).at(0).where, "config.json:1:1");
}

TEST(LocateErrors, KeepsWhatTheMessageOfASingleErrorAdds) {
  absl::Status status(absl::StatusCode::kInvalidArgument, "no good:\n grid");
  status.SetPayload(kErrorDetailUrl, *InvalidField({.field = "name"}).GetPayload(kErrorDetailUrl));
  const absl::Status located = LocateErrors(status, kText, {.name = "job.yaml"});
  EXPECT_EQ(located.message(), "job.yaml:1:7: no good:\n grid");
  EXPECT_EQ(FieldErrorsOf(located).at(0).where, "job.yaml:1:7");
}

TEST(LocateErrors, NoPlaceInTheFileIsOfAnOption) { EXPECT_EQ(WhereOf("--workers"), ""); }

TEST(LocateErrors, LeavesOtherErrorsAlone) {
  EXPECT_EQ(LocateErrors(absl::NotFoundError("gone"), kText, {}), absl::NotFoundError("gone"));
}

}  // namespace
}  // namespace takt::config
