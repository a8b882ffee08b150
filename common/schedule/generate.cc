// SPDX-License-Identifier: Apache-2.0
#include "common/schedule/generate.h"

#include <algorithm>
#include <array>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/schedule/generators/generators.h"

namespace takt::schedule {
namespace {

std::span<const Generator> Generators() {
  static const std::array generators = {
#define TAKT_FAMILY(Function, file) Function(),
#include "common/schedule/generators/families.def"
#undef TAKT_FAMILY
  };
  return generators;
}

absl::Status CheckPositive(std::string_view field, int value) {
  if (value >= 1) return absl::OkStatus();
  return InvalidField({.field = std::string(field),
                       .value = absl::StrCat(value),
                       .rule = "must be at least 1",
                       .fix = "give a positive number"});
}

absl::Status CheckSizes(const Family& family, const GenerateOptions& options) {
  RETURN_IF_ERROR(CheckPositive("ranks", options.num_ranks));
  RETURN_IF_ERROR(CheckPositive("microbatches", options.num_microbatches));
  RETURN_IF_ERROR(CheckPositive("chunks", *options.num_chunks));
  if (!family.uses_chunks && *options.num_chunks != family.num_chunks) {
    return InvalidField(
        {.field = "chunks",
         .value = absl::StrCat(*options.num_chunks),
         .rule = absl::StrCat(std::string(family.name), " has ",
                              family.num_chunks == 1 ? "one chunk" : "two chunks", " per rank"),
         .fix = "leave chunks out, or use an interleaved schedule"});
  }
  if (options.group.has_value()) {
    RETURN_IF_ERROR(CheckPositive("group", *options.group));
    if (!family.uses_group) {
      return InvalidField({.field = "group",
                           .value = absl::StrCat(*options.group),
                           .rule = absl::StrCat(std::string(family.name), " has no groups"),
                           .fix = "leave group out, or use an interleaved schedule"});
    }
  }
  if (options.memory.has_value()) RETURN_IF_ERROR(CheckPositive("memory", *options.memory));
  // Each product is checked before the next one is made, so none overflows.
  const std::int64_t stages = std::int64_t{options.num_ranks} * *options.num_chunks;
  const std::int64_t kinds = family.splits_backward ? 3 : 2;
  if (stages > kMaxActions || stages * options.num_microbatches > kMaxActions / kinds) {
    return InvalidField({.field = "microbatches",
                         .value = absl::StrCat(options.num_microbatches),
                         .rule = absl::StrCat("ranks (", options.num_ranks, ") x chunks (",
                                              *options.num_chunks, ") x microbatches x ", kinds,
                                              " actions must not exceed ", kMaxActions),
                         .fix = "use fewer microbatches, ranks or chunks"});
  }
  if (!family.uses_costs) return absl::OkStatus();
  return cost::CheckCosts(options.costs, static_cast<int>(stages));
}

}  // namespace

Schedule MakeSchedule(const Family& family, const GenerateOptions& options, std::vector<Row> rows) {
  return {.name = std::string(family.name),
          .num_stages = options.num_ranks * *options.num_chunks,
          .num_microbatches = options.num_microbatches,
          .placement = family.placement,
          .updates = family.updates,
          .ranks = std::move(rows)};
}

std::span<const Family> Families() {
  static const std::vector<Family> families = [] {
    std::vector<Family> all;
    for (const Generator& generator : Generators()) all.push_back(generator.family);
    return all;
  }();
  return families;
}

absl::StatusOr<Schedule> Generate(std::string_view family, const GenerateOptions& options) {
  const std::span<const Generator> generators = Generators();
  const auto found =
      std::ranges::find(generators, family, [](const Generator& each) { return each.family.name; });
  if (found == generators.end()) {
    const std::string names = absl::StrJoin(
        Families(), ", ", [](std::string* out, const Family& known) { out->append(known.name); });
    return absl::NotFoundError(
        absl::StrCat("schedule is ", std::string(family), ": must be one of ", names));
  }
  GenerateOptions sizes = options;
  if (!sizes.num_chunks.has_value()) sizes.num_chunks = found->family.num_chunks;
  RETURN_IF_ERROR(CheckSizes(found->family, sizes));
  return found->generate(sizes);
}

}  // namespace takt::schedule
