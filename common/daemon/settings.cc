// SPDX-License-Identifier: Apache-2.0
#include "common/daemon/settings.h"

#include <cstdlib>
#include <iterator>
#include <memory>
#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/base/bounded_text.h"
#include "common/base/status.h"
#include "common/config/yaml_tree.h"

namespace takt::daemon {
namespace {

constexpr char kSettingsOption[] = "settings";
constexpr std::size_t kMostShown = 60;  // bytes of a value in an error

std::string KeyOf(const CLI::Option& option) {
  return absl::StrReplaceAll(option.get_lnames().at(0), {{"-", "_"}});
}

[[noreturn]] void Refuse(FieldError error) {
  throw CLI::ConfigError(error.ToString(), CLI::ExitCodes::ConfigError);
}

// Returns what is wrong with a value, without the name of the option.
std::string RuleOf(const CLI::Option& option, const CLI::ParseError& error) {
  const std::string text = error.what(), name = option.get_name() + ": ";
  if (text.starts_with(name)) return "is refused: " + text.substr(name.size());
  return "is no value of this setting, or out of its range";
}

class YamlSettings final : public CLI::Config {
 public:
  explicit YamlSettings(CLI::App& app) : app_(app) {}

  // Sets the options, and leaves nothing to the parser, which would refuse a value without its
  // place.
  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    const std::string file = app_.get_config_ptr()->as<std::string>();
    const std::string text{std::istreambuf_iterator<char>(input), {}};
    const absl::StatusOr<config::YamlNode> root = config::ParseYaml(text, file);
    if (!root.ok()) {
      FieldError error = FieldErrorsOf(root.status()).at(0);
      error.field = "settings file";
      Refuse(std::move(error));
    }
    if (root->kind != config::YamlNode::Kind::kMap) {
      Refuse({.field = "settings file",
              .rule = "must be a map of settings",
              .fix = "write one `name: value` a line",
              .where = root->where});
    }
    std::set<std::string> seen;
    for (std::size_t i = 0; i < root->keys.size(); ++i) {
      CLI::Option& option = Known(root->keys[i], root->key_where[i]);
      if (!seen.insert(root->keys[i]).second) {
        Refuse({.field = root->keys[i],
                .rule = "is given twice",
                .fix = "keep one of them",
                .where = root->key_where[i]});
      }
      const config::YamlNode& value = root->values[i];
      if (value.kind == config::YamlNode::Kind::kNull) continue;  // the key counts as absent
      if (value.kind != config::YamlNode::Kind::kScalar) {
        Refuse({.field = root->keys[i],
                .rule = "must be one value",
                .fix = "write it on the same line, without a list or a map",
                .where = value.where});
      }
      // The command line and the environment win over the file.
      if (!option.empty() || std::getenv(option.get_envname().c_str()) != nullptr) continue;
      Set(option, root->keys[i], value);
    }
    return {};
  }

  std::string to_config(const CLI::App* /*app*/, bool /*defaults*/, bool /*description*/,
                        std::string /*prefix*/) const override {
    return "";  // no option prints the settings, so nothing asks
  }

 private:
  static void Set(CLI::Option& option, const std::string& key, const config::YamlNode& value) {
    try {
      const bool is_flag = option.get_expected_min() == 0;
      option.add_result(is_flag ? option.get_flag_value(option.get_lnames().at(0), value.text)
                                : value.text);
      option.run_callback();
    } catch (const CLI::ParseError& error) {
      Refuse({.field = key,
              .value = Shortened(absl::Utf8SafeCHexEscape(value.text), kMostShown),
              .rule = RuleOf(option, error),
              .where = value.where});
    }
  }

  CLI::Option& Known(const std::string& key, const std::string& where) const {
    std::vector<std::string> known;
    for (CLI::Option* option : app_.get_options()) {
      if (!option->get_configurable() || option->get_lnames().empty()) continue;
      if (KeyOf(*option) == key) return *option;
      known.push_back(KeyOf(*option));
    }
    Refuse({.field = key,
            .rule = "is not a setting of this program",
            .fix = "remove it, or use one of " + absl::StrJoin(known, ", "),
            .where = where});
  }

  CLI::App& app_;
};

}  // namespace

void AddSettings(CLI::App& app, const std::string& default_file, const std::string& prefix) {
  for (CLI::Option* option : app.get_options()) {
    const bool setting = !option->get_lnames().empty() && option != app.get_help_ptr() &&
                         option != app.get_version_ptr();
    option->configurable(setting);
    if (setting) option->envname(prefix + "_" + absl::AsciiStrToUpper(KeyOf(*option)));
  }
  app.set_config(std::string("--") + kSettingsOption, default_file,
                 "Settings file (YAML): these options, `-` written as `_`")
      ->configurable(false);
  app.config_formatter(std::make_shared<YamlSettings>(app));
}

}  // namespace takt::daemon
