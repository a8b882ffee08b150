// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "cli/base/new_file.h"
#include "cli/base/report.h"
#include "cli/base/text.h"
#include "cli/init/commands.h"
#include "cli/init/examples.h"
#include "common/base/status.h"
#include "common/config/job_file.h"
#include "common/config/job_spec_serde.h"
#include "takt/v1/job_spec.pb.h"

namespace takt::cli {
namespace {

namespace fs = std::filesystem;

constexpr char kJobExtension[] = ".yaml";

struct InitOptions {
  std::string name, from = "tiny", out;
  bool force = false;
};

bool IsTemplate(const ExampleFile& file) { return absl::EndsWith(file.name, kJobExtension); }

std::string TemplateName(const ExampleFile& file) {
  return std::string(absl::StripSuffix(file.name, kJobExtension));
}

std::vector<std::string> TemplateNames() {
  std::vector<std::string> names;
  for (const ExampleFile& file : kExamples) {
    if (IsTemplate(file)) names.push_back(TemplateName(file));
  }
  return names;
}

// Returns the second line of a template, which says what it is. The first is for editors.
std::string About(const ExampleFile& file) {
  const std::vector<std::string> lines = absl::StrSplit(file.text, '\n');
  return std::string(absl::StripPrefix(lines[1], "# "));
}

absl::StatusOr<ExitCode> ListTemplates(const Context& context) {
  Json templates = Json::array();
  Table table({"TEMPLATE", "JOB"});
  for (const ExampleFile& file : kExamples) {
    if (!IsTemplate(file)) continue;
    table.Add({TemplateName(file), About(file)});
    templates.push_back({{"name", TemplateName(file)}, {"about", About(file)}});
  }
  if (context.json()) {
    Json json = Json::object();
    json["templates"] = std::move(templates);
    PrintJson(context, json);
  } else {
    context.terminal.out << table.ToString() << std::flush;
    Say(context, "takt init NAME --from TEMPLATE writes one");
  }
  return ExitCode::kDone;
}

// Returns the template with the name of the job in place of its own: in the commands of its first
// lines, and in its directories, which two jobs must not share. A template calls its file and its
// directory of checkpoints by its own name.
std::string JobText(const ExampleFile& file, const std::string& name) {
  const std::string old_name = TemplateName(file);
  std::vector<std::string> lines = absl::StrSplit(file.text, '\n');
  for (std::string& line : lines) {
    if (absl::StartsWith(line, "name: ")) line = absl::StrCat("name: ", name);
    for (const auto& [before, after] :
         {std::pair(" ", kJobExtension), std::pair("directory: ", ","),
          std::pair("tensorboard: ", "-"), std::pair("export ", " "),
          std::pair("generate ", " ")}) {
      const std::string old_text = absl::StrCat(before, old_name, after);
      line = absl::StrReplaceAll(line, {{old_text, absl::StrCat(before, name, after)}});
    }
  }
  return absl::StrJoin(lines, "\n");
}

// Checks that a job may have this name. Then a file may have it, too.
absl::Status CheckName(const std::string& name) {
  v1::JobSpec spec;
  spec.set_name(name);
  for (const FieldError& error : FieldErrorsOf(config::ToJobSpec(spec).status())) {
    if (error.field != "name") continue;
    return InvalidField(
        {.field = "NAME", .value = error.value, .rule = error.rule, .fix = error.fix});
  }
  return absl::OkStatus();
}

bool IsThere(const std::string& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

absl::Status WriteJobFile(const std::string& path, const std::string& text, bool force) {
  if (!IsThere(path)) {
    RETURN_IF_ERROR(CheckNewFile(path));
    return WriteNewFile(path, text);
  }
  if (!force) {
    return InvalidField({.field = "NAME",
                         .value = path,
                         .rule = "is there already, and nothing is overwritten",
                         .fix = "choose another name, or replace the file with --force"});
  }
  const std::string new_path = path + ".new";
  std::error_code error;
  fs::remove(new_path, error);
  RETURN_IF_ERROR(WriteNewFile(new_path, text));
  fs::rename(new_path, path, error);
  if (!error) return absl::OkStatus();
  std::error_code ignored;
  fs::remove(new_path, ignored);
  return absl::InternalError(absl::StrCat("cannot replace ", path, ": ", error.message()));
}

// Writes the files that the template names, where they are not there yet. Adds their paths.
absl::Status WriteCompanions(const Context& context, const ExampleFile& job,
                             const fs::path& directory, std::vector<std::string>& written) {
  for (const ExampleFile& file : kExamples) {
    if (IsTemplate(file) || !absl::StrContains(job.text, file.name)) continue;
    const std::string path = (directory / file.name).string();
    if (IsThere(path)) {
      Say(context, absl::StrCat(path, " is there already and is left as it is"));
      continue;
    }
    RETURN_IF_ERROR(WriteNewFile(path, file.text));
    written.push_back(path);
  }
  return absl::OkStatus();
}

absl::StatusOr<ExitCode> Init(const Context& context, const InitOptions& options) {
  if (options.name.empty()) return ListTemplates(context);
  RETURN_IF_ERROR(CheckName(options.name));
  const fs::path directory = options.out;
  std::vector<std::string> written;
  for (const ExampleFile& file : kExamples) {
    if (!IsTemplate(file) || TemplateName(file) != options.from) continue;
    const std::string path = (directory / absl::StrCat(options.name, kJobExtension)).string();
    const std::string text = JobText(file, options.name);
    // A name such as `null` is no text in YAML.
    RETURN_IF_ERROR(config::ParseJobFile(text, {.name = path}).status());
    RETURN_IF_ERROR(WriteJobFile(path, text, options.force));
    written.push_back(path);
    RETURN_IF_ERROR(WriteCompanions(context, file, directory, written));
  }
  if (context.json()) {
    Json json = Json::object();
    json["files"] = written;
    PrintJson(context, json);
  } else {
    context.terminal.out << absl::StrJoin(written, "\n") << std::endl;
    Say(context, "the first lines of the job file say what it needs and how to run it");
  }
  return ExitCode::kDone;
}

}  // namespace

void AddInit(CLI::App& app, Context& context) {
  AddCommand<InitOptions>(
      app, context, "init", "Write a job file to start from, or list the templates",
      [](CLI::App& app, InitOptions& options) {
        app.add_option("NAME", options.name, "Name of the job; the file is NAME.yaml")
            ->type_name("");
        app.add_option("--from", options.from, "The template; default: tiny")
            ->check(CLI::IsMember(TemplateNames()));
        app.add_option("--out", options.out, "Where to write; default: this folder")
            ->type_name("DIR");
        app.add_flag("--force", options.force, "Replace NAME.yaml if it is there");
      },
      Init)
      ->footer(
          "Without NAME the command lists the templates. Text and scripts that a template names "
          "are written\nbeside it where they are not there.\n\n"
          "Examples:\n"
          "  takt init\n"
          "  takt init my-job && takt local run my-job.yaml\n"
          "  takt init my-llama --from finetune");
}

}  // namespace takt::cli
