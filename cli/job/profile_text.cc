// SPDX-License-Identifier: Apache-2.0
#include "cli/job/profile_text.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/base/report.h"
#include "cli/base/text.h"

namespace takt::cli {
namespace {

using profile::Conditions;
using profile::Profile;

// Links beyond these are only in the JSON.
constexpr std::size_t kLinksShown = 20;

struct LayerRow {
  const JobLayer& layer;
  Conditions conditions;
  std::optional<Profile::Found> found;  // nullopt: it can only be guessed
};

std::vector<LayerRow> LayerRows(const JobProfile& known) {
  std::vector<LayerRow> rows;
  for (const JobLayer& layer : known.layers) {
    std::set<Conditions> all(known.conditions.begin(), known.conditions.end());
    for (const auto& [key, sample] : known.profile.layers()) {
      if (key.first == layer.shape) all.insert(key.second);
    }
    for (const Conditions& conditions : all) {
      rows.push_back({.layer = layer,
                      .conditions = conditions,
                      .found = known.profile.FindLayer({layer.shape, conditions}, layer.work)});
    }
  }
  return rows;
}

// Returns what was measured of ranks under the conditions of the rows.
std::vector<std::pair<Conditions, profile::RankSample>> RankRows(
    const JobProfile& known, const std::vector<LayerRow>& layers) {
  std::vector<std::pair<Conditions, profile::RankSample>> rows;
  for (const auto& [conditions, sample] : known.profile.ranks()) {
    const auto shown = [&of_rank = conditions](const LayerRow& row) {
      return row.conditions == of_rank;
    };
    if (std::ranges::any_of(layers, shown)) rows.emplace_back(conditions, sample);
  }
  return rows;
}

std::string OriginName(const LayerRow& row) {
  return std::string(profile::Name(row.found ? row.found->origin : profile::Origin::kGuessed));
}

Json ConditionsJson(const Conditions& conditions) {
  return {{"machine", conditions.machine},
          {"threads", conditions.threads},
          {"ranks_per_host", conditions.ranks_per_host}};
}

Json LayerJson(const LayerRow& row) {
  Json json;
  json["layer"] = profile::ToString(row.layer.shape);
  json.update(ConditionsJson(row.conditions));
  const auto seconds = [&](double profile::Passes::*pass) {
    return row.found ? Json(row.found->seconds.*pass) : Json(nullptr);
  };
  json["forward_seconds"] = seconds(&profile::Passes::forward);
  json["input_grad_seconds"] = seconds(&profile::Passes::input_grad);
  json["weight_grad_seconds"] = seconds(&profile::Passes::weight_grad);
  json["origin"] = OriginName(row);
  return json;
}

void PrintProfileJson(const Context& context, const JobProfile& known) {
  Json layers = Json::array(), ranks = Json::array(), messages = Json::array(),
       links = Json::array(), sums = Json::array(), meetings = Json::array(), pairs = Json::array();
  const std::vector<LayerRow> rows = LayerRows(known);
  for (const LayerRow& row : rows) layers.push_back(LayerJson(row));
  for (const auto& [conditions, sample] : RankRows(known, rows)) {
    Json rank = ConditionsJson(conditions);
    rank["update_seconds"] = sample.update_seconds;
    rank["dispatch_seconds"] = sample.dispatch_seconds;
    ranks.push_back(std::move(rank));
  }
  for (const auto& [key, sample] : known.profile.messages()) {
    messages.push_back(
        {{"same_host", key.same_host}, {"bytes", sample.bytes}, {"seconds", sample.seconds}});
  }
  for (const auto& [key, sample] : known.profile.links()) {
    links.push_back({{"from_host", key.from},
                     {"to_host", key.to},
                     {"bytes", sample.bytes},
                     {"seconds", sample.seconds}});
  }
  for (const auto& [key, seconds] : known.profile.sums()) {
    sums.push_back({{"same_host", key.same_host},
                    {"num_ranks", key.num_ranks},
                    {"seconds_per_byte", seconds}});
  }
  for (const auto& [key, sample] : known.profile.meetings()) {
    meetings.push_back({{"same_host", key.same_host},
                        {"num_ranks", key.num_ranks},
                        {"bytes", sample.bytes},
                        {"seconds", sample.seconds}});
  }
  for (const auto& [conditions, ratio] : known.profile.pairs()) {
    Json pair = ConditionsJson(conditions);
    pair["ratio"] = ratio;
    pairs.push_back(std::move(pair));
  }
  PrintJson(context, {{"layers", std::move(layers)},
                      {"ranks", std::move(ranks)},
                      {"messages", std::move(messages)},
                      {"links", std::move(links)},
                      {"sums", std::move(sums)},
                      {"meetings", std::move(meetings)},
                      {"pairs", std::move(pairs)}});
}

std::string Scaled(double value, double unit) { return absl::StrFormat("%.3g", value / unit); }

// The work of an embedding is bytes.
std::string RateText(const LayerRow& row) {
  if (row.layer.shape.kind == model::LayerKind::kEmbedding || row.found->seconds.sum() <= 0)
    return "-";
  return Scaled(row.layer.work.sum() / row.found->seconds.sum(), 1e9);
}

void PrintLayers(std::ostream& out, const std::vector<LayerRow>& rows) {
  Table table({"LAYER", "WHERE", "F MS", "I MS", "W MS", "GFLOP/S", "ORIGIN"});
  for (const LayerRow& row : rows) {
    std::vector<std::string> cells = {profile::ToString(row.layer.shape),
                                      profile::ToString(row.conditions)};
    if (row.found) {
      const profile::Passes& seconds = row.found->seconds;
      for (const double pass : {seconds.forward, seconds.input_grad, seconds.weight_grad})
        cells.push_back(Scaled(pass, 1e-3));
      cells.push_back(RateText(row));
    } else {
      cells.insert(cells.end(), {"-", "-", "-", "-"});
    }
    cells.push_back(OriginName(row));
    table.Add(std::move(cells));
  }
  out << table.ToString();
}

void PrintRanks(std::ostream& out, const JobProfile& known, const std::vector<LayerRow>& layers) {
  Table table({"RANKS", "UPDATE NS/PARAMETER", "DISPATCH US"});
  for (const auto& [conditions, sample] : RankRows(known, layers)) {
    table.Add({profile::ToString(conditions), Scaled(sample.update_seconds, 1e-9),
               Scaled(sample.dispatch_seconds, 1e-6)});
  }
  out << '\n' << table.ToString();
}

std::string HostText(bool same_host) { return same_host ? "on a host" : "between hosts"; }

// Prints what messages take from one host to another one.
void PrintLinks(std::ostream& out, const Profile& profile) {
  if (profile.links().empty()) return;
  Table table({"FROM HOST", "TO HOST", "SIZE", "US"});
  std::size_t shown = 0;
  for (const auto& [key, sample] : profile.links()) {
    if (shown == kLinksShown) break;
    ++shown;
    table.Add({key.from, key.to, FormatBytes(static_cast<double>(sample.bytes)),
               Scaled(sample.seconds, 1e-6)});
  }
  out << '\n' << table.ToString();
  if (profile.links().size() > shown)
    out << "and " << profile.links().size() - shown << " more, which -o json lists\n";
}

void PrintMessagesAndSums(std::ostream& out, const Profile& profile) {
  Table messages({"MESSAGES", "SIZE", "US"});
  for (const auto& [key, sample] : profile.messages()) {
    messages.Add({HostText(key.same_host), FormatBytes(static_cast<double>(sample.bytes)),
                  Scaled(sample.seconds, 1e-6)});
  }
  if (!profile.messages().empty()) out << '\n' << messages.ToString();
  Table sums({"SUMS OF GRADIENTS", "RANKS", "NS/BYTE"});
  for (const auto& [key, seconds] : profile.sums())
    sums.Add({HostText(key.same_host), absl::StrCat(key.num_ranks), Scaled(seconds, 1e-9)});
  if (!profile.sums().empty()) out << '\n' << sums.ToString();
  Table meetings({"MEETINGS IN LAYERS", "RANKS", "SIZE", "US"});
  for (const auto& [key, sample] : profile.meetings()) {
    meetings.Add({HostText(key.same_host), absl::StrCat(key.num_ranks),
                  FormatBytes(static_cast<double>(sample.bytes)), Scaled(sample.seconds, 1e-6)});
  }
  if (!profile.meetings().empty()) out << '\n' << meetings.ToString();
  Table pairs({"OVERLAPPED PAIRS", "OF F AND B ALONE"});
  for (const auto& [conditions, ratio] : profile.pairs())
    pairs.Add({profile::ToString(conditions), absl::StrFormat("%.3f", ratio)});
  if (!profile.pairs().empty()) out << '\n' << pairs.ToString();
}

}  // namespace

void PrintProfile(const Context& context, const JobProfile& known) {
  if (context.json()) return PrintProfileJson(context, known);
  const std::vector<LayerRow> rows = LayerRows(known);
  std::ostream& out = context.terminal.out;
  PrintLayers(out, rows);
  PrintRanks(out, known, rows);
  PrintMessagesAndSums(out, known.profile);
  PrintLinks(out, known.profile);
  out << std::flush;
}

}  // namespace takt::cli
