// SPDX-License-Identifier: Apache-2.0
#include "common/config/spec_files.h"

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/field_rules.h"
#include "common/base/status.h"
#include "common/config/job_spec_serde.h"
#include "common/model/hf_config.h"
#include "takt/v1/job_spec.pb.h"

namespace takt::config {
namespace {

constexpr std::size_t kMaxFileBytes = 16 << 20;
constexpr std::string_view kFileScheme = "file:";

std::string Absolute(const std::string& path, std::string_view directory) {
  if (path.empty() || path.front() == '/' || directory.empty()) return path;
  return absl::StrCat(std::string(directory), directory.back() == '/' ? "" : "/", path);
}

absl::StatusOr<std::string> Read(const ReadFile& read_file, const char* field,
                                 const std::string& path) {
  absl::StatusOr<std::string> text = read_file(path);
  if (!text.ok()) {
    return InvalidField(
        {.field = field,
         .value = path,
         .rule = absl::StrCat("must name a readable file: ", text.status().message()),
         .fix = "check the path"});
  }
  if (text->size() > kMaxFileBytes) {
    return InvalidField({.field = field,
                         .value = path,
                         .rule = absl::StrCat("has ", text->size(), " bytes; at most ",
                                              kMaxFileBytes, " are read")});
  }
  return text;
}

// The fields of a rotary scaling, in their order in job files; nullopt: there is none.
using Scaling = std::optional<std::tuple<double, double, double, int>>;
Scaling ScalingOf(const v1::RopeScalingSpec& spec) {
  return std::tuple(spec.factor(), spec.low_freq_factor(), spec.high_freq_factor(),
                    spec.original_positions());
}
Scaling ScalingOf(const std::optional<model::RopeScaling>& scaling) {
  if (!scaling.has_value()) return std::nullopt;
  return std::tuple(scaling->factor, scaling->low_freq_factor, scaling->high_freq_factor,
                    scaling->original_positions);
}

std::string ToText(bool value) { return value ? "true" : "false"; }
std::string ToText(double value) { return absl::StrCat(value); }
std::string ToText(const std::vector<int>& list) {
  return list.empty() ? "left out" : absl::StrJoin(list, ", ");
}
std::string ToText(const Scaling& scaling) {
  if (!scaling.has_value()) return "left out";
  const auto& [factor, low, high, original_positions] = *scaling;
  return absl::StrCat("{factor: ", factor, ", low_freq_factor: ", low, ", high_freq_factor: ", high,
                      ", original_positions: ", original_positions, "}");
}

absl::Status FillModel(v1::ModelSpec& spec, const std::string& path,
                       const model::ModelConfig& config) {
  FieldRules rules;
  const auto refuse_unless = [&](bool agrees, const char* field, const std::string& given,
                                 const std::string& from_file) {
    rules.Check(agrees, {.field = field,
                         .value = given,
                         .rule = absl::StrCat("must be ", from_file, ", as ", path, " says"),
                         .fix = "remove it from the job"});
  };
  // `given` 0 means that the job leaves the field to the file.
  const auto check = [&](const char* field, int given, int from_file) {
    refuse_unless(given == 0 || given == from_file, field, absl::StrCat(given),
                  absl::StrCat(from_file));
  };
  const auto check_given = [&](const char* field, bool is_given, auto given, auto from_file) {
    refuse_unless(!is_given || given == from_file, field, ToText(given), ToText(from_file));
  };
  check("model.family", spec.family(), static_cast<int>(config.family));
  check("model.layers", spec.layers(), config.layers);
  check("model.hidden", spec.hidden(), config.hidden);
  check("model.heads", spec.heads(), config.heads);
  check("model.kv_heads", spec.kv_heads(), config.kv_heads);
  check("model.head_size", spec.head_size(), config.head_size);
  check("model.vocab", spec.vocab(), config.vocab);
  check("model.positions", spec.positions(), config.positions);
  check("model.inner", spec.inner(), config.inner);
  check_given("model.tied_head", spec.has_tied_head(), spec.tied_head(), config.tied_head);
  check_given("model.norm_epsilon", spec.has_norm_epsilon(), spec.norm_epsilon(),
              config.norm_epsilon);
  check_given("model.initializer_range", spec.has_initializer_range(), spec.initializer_range(),
              config.initializer_range);
  check_given("model.rope_theta", spec.has_rope_theta(), spec.rope_theta(), config.rope_theta);
  check_given("model.rope_scaling", spec.has_rope_scaling(), ScalingOf(spec.rope_scaling()),
              ScalingOf(config.rope_scaling));
  // Without a window in the file a token sees all positions.
  check("model.attention_window", spec.attention_window(),
        config.attention_window.value_or(config.positions));
  const v1::ExpertsSpec& experts = spec.experts();
  if (config.mixture.has_value()) {
    check("model.experts.count", experts.count(), config.mixture->experts);
    check("model.experts.per_token", experts.per_token(), config.mixture->chosen);
    check("model.experts.inner", experts.inner(), config.mixture->inner);
    check("model.experts.scores", experts.scores(), static_cast<int>(config.mixture->scores));
    check_given("model.experts.normalize", experts.has_normalize(), experts.normalize(),
                config.mixture->normalised);
    check_given("model.experts.dense_blocks", experts.dense_blocks_size() > 0,
                std::vector<int>(experts.dense_blocks().begin(), experts.dense_blocks().end()),
                config.mixture->dense_blocks);
  }
  model::ModelConfig shape = config;
  if (spec.context() != 0) shape.context = spec.context();
  // A job may balance the experts otherwise than the file says.
  if (shape.mixture.has_value() && experts.has_auxiliary_loss())
    shape.mixture->auxiliary_loss = experts.auxiliary_loss();
  if (shape.mixture.has_value() && experts.has_bias_rate())
    shape.mixture->bias_rate = experts.bias_rate();
  WriteModel(shape, spec);
  if (config.dropout > 0) spec.set_hf_config_dropout(config.dropout);
  return rules.status();
}

}  // namespace

void MakePathsAbsolute(v1::JobSpec& spec, std::string_view directory) {
  std::vector<std::string*> paths;
  for (v1::CorpusSpec& corpus : *spec.mutable_data()->mutable_train())
    paths.push_back(corpus.mutable_path());
  if (spec.data().has_validation())
    paths.push_back(spec.mutable_data()->mutable_validation()->mutable_path());
  if (spec.model().has_init_from()) paths.push_back(spec.mutable_model()->mutable_init_from());
  if (spec.model().has_hf_config()) paths.push_back(spec.mutable_model()->mutable_hf_config());
  if (spec.has_checkpoint()) paths.push_back(spec.mutable_checkpoint()->mutable_directory());
  if (spec.logging().has_tensorboard())
    paths.push_back(spec.mutable_logging()->mutable_tensorboard());
  for (std::string* const path : paths) *path = Absolute(*path, directory);
  const std::string& schedule = spec.parallelism().schedule();
  if (schedule.starts_with(kFileScheme)) {
    spec.mutable_parallelism()->set_schedule(absl::StrCat(
        std::string(kFileScheme), Absolute(schedule.substr(kFileScheme.size()), directory)));
  }
}

absl::Status FillFromFiles(v1::JobSpec& spec, const ReadFile& read_file) {
  const v1::ModelSpec& model = spec.model();
  if (!model.init_from().empty() && !model.hf_config().empty()) {
    return InvalidField(
        {.field = "model.hf_config",
         .value = model.hf_config(),
         .rule = "must not stand beside model.init_from, which has a config.json of its own",
         .fix = "remove one of them"});
  }
  const bool from_weights = !model.init_from().empty();
  const char* field = from_weights ? "model.init_from" : "model.hf_config";
  const std::string path =
      from_weights ? Absolute("config.json", model.init_from()) : model.hf_config();
  if (!path.empty()) {
    ASSIGN_OR_RETURN(const std::string text, Read(read_file, field, path));
    ASSIGN_OR_RETURN(const model::ModelConfig config, model::ParseHfConfig(text, path));
    RETURN_IF_ERROR(FillModel(*spec.mutable_model(), path, config));
    const bool asks_for_end =
        spec.data().documents() == v1::DOCUMENTS_MODE_SEPARATE && !spec.data().has_document_end();
    if (asks_for_end && config.end_token.has_value())
      spec.mutable_data()->set_document_end(*config.end_token);
  }
  const std::string& schedule = spec.parallelism().schedule();
  if (schedule.starts_with(kFileScheme)) {
    ASSIGN_OR_RETURN(std::string csv,
                     Read(read_file, "parallelism.schedule", schedule.substr(kFileScheme.size())));
    spec.mutable_parallelism()->set_schedule_csv(std::move(csv));
  }
  return absl::OkStatus();
}

}  // namespace takt::config
