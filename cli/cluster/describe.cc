// SPDX-License-Identifier: Apache-2.0
// `takt cluster describe`: the cluster as a file that plans are made from.
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/base/new_file.h"
#include "cli/base/report.h"
#include "cli/client/connect.h"
#include "cli/cluster/commands.h"
#include "cli/job/attached_workers.h"
#include "common/base/counted.h"
#include "common/base/status.h"
#include "common/cluster/cluster_serde.h"

namespace takt::cli {
namespace {

struct DescribeOptions {
  std::optional<std::string> out;
};

absl::StatusOr<ExitCode> Describe(const Context& context, const DescribeOptions& options) {
  // Checks the file before any request. It is written at the end.
  if (options.out) RETURN_IF_ERROR(CheckNewFile(*options.out));
  ASSIGN_OR_RETURN(const auto client, ConnectToCoordinator(context));
  ASSIGN_OR_RETURN(const std::vector<v1::Worker> workers, client->ListWorkers());
  cluster::Cluster cluster{.offers = OffersOf(workers)};
  if (cluster.offers.empty())
    return absl::FailedPreconditionError("no worker is attached that takes work; start one");
  ASSIGN_OR_RETURN(cluster.profile, ReadProfile(*client));
  if (cluster.profile != nullptr && cluster.profile->empty()) cluster.profile = nullptr;
  const std::string text = cluster::FormatCluster(cluster);
  if (options.out) {
    RETURN_IF_ERROR(WriteNewFile(*options.out, text));
    Say(context, absl::StrCat(*options.out, ": ", Counted(std::ssize(cluster.offers), "worker")));
  }
  if (context.json()) {
    PrintJson(context, Json::parse(cluster::FormatClusterJson(cluster)));
  } else if (!options.out) {
    context.terminal.out << text << std::flush;
  }
  return ExitCode::kDone;
}

}  // namespace

void AddCluster(CLI::App& app, Context& context) {
  CLI::App* group = app.add_subcommand("cluster", "Describe the cluster, for plans without it");
  group->footer("Example:\n  takt cluster describe --out cluster.yaml");
  AddCommand<DescribeOptions>(
      *group, context, "describe",
      "Write the attached workers and what they measured, as a file for takt plan --cluster",
      [](CLI::App& app, DescribeOptions& options) {
        app.add_option("--out", options.out,
                       "File to write instead of stdout; it must not exist yet")
            ->type_name("FILE");
      },
      Describe)
      ->footer(
          "Workers that are lost, away, leaving, drained or quarantined are left out.\n"
          "docs/clusters.md describes the file; people may write and change it.\n"
          "With -o json the file is one object, which takt plan reads as well.\n\n"
          "Examples:\n"
          "  takt cluster describe\n"
          "  takt cluster describe --out cluster.yaml && takt plan job.yaml --cluster "
          "cluster.yaml");
}

}  // namespace takt::cli
