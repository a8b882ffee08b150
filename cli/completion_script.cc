// SPDX-License-Identifier: Apache-2.0
#include "cli/completion_script.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"

namespace takt::cli {
namespace {

struct OptionWords {
  std::vector<std::string> names;    // "-o", "--output"; empty for a positional
  std::vector<std::string> choices;  // of its value; empty: anything
  std::string kind;                  // of the names that `takt complete` prints; empty: none
  bool takes_value = false;
  std::string description;
};

// One command and what may follow it.
struct Node {
  std::string path;                                           // "takt schedule show"
  std::vector<std::pair<std::string, std::string>> commands;  // name, description
  std::vector<OptionWords> options;                           // includes those of its groups

  std::vector<std::string> Words() const {
    std::vector<std::string> words;
    for (const auto& [name, description] : commands) words.push_back(name);
    for (const OptionWords& option : options) {
      const auto& more = option.names.empty() ? option.choices : option.names;
      words.insert(words.end(), more.begin(), more.end());
    }
    return words;
  }
  // Returns the kind of names that may follow as a positional. Empty: none.
  std::string Kind() const {
    for (const OptionWords& option : options) {
      if (option.names.empty() && !option.kind.empty()) return option.kind;
    }
    return "";
  }
};

// Parses the {a,b} that a checked option shows as its type.
std::vector<std::string> ChoicesOf(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const auto open = type.find('{');
  const auto close = type.find('}', open);
  if (open == std::string::npos || close == std::string::npos) return {};
  return absl::StrSplit(type.substr(open + 1, close - open - 1), ',');
}

// What a value is called in the help says what names the shell may offer for it.
std::string KindOf(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const std::string value =
      option.get_positional() ? option.get_name() : type.substr(0, type.find(':'));
  if (value == "JOB" && type.empty()) return "jobs";  // else it is a job file
  if (value == "WORKER") return "workers";
  return value == "STEP" ? "steps" : "";
}

OptionWords WordsOf(const CLI::Option& option) {
  OptionWords words{.choices = ChoicesOf(option),
                    .kind = KindOf(option),
                    .takes_value = option.get_items_expected_max() > 0,
                    .description = option.get_description()};
  for (const std::string& name : option.get_snames()) words.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) words.names.push_back("--" + name);
  return words;
}

void Collect(const CLI::App& app, const Node& parent, std::vector<Node>& nodes) {
  Node node{.path = parent.path.empty() ? app.get_name()
                                        : absl::StrCat(parent.path, " ", app.get_name())};
  for (const CLI::Option* option : app.get_options()) node.options.push_back(WordsOf(*option));
  for (const OptionWords& option : parent.options) {
    if (option.names.empty()) continue;  // a positional of the group
    if (app.get_option_no_throw(option.names.back()) == nullptr) node.options.push_back(option);
  }
  const auto subcommands = app.get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* sub : subcommands) {
    if (sub->get_group().empty()) continue;  // hidden
    node.commands.emplace_back(sub->get_name(), sub->get_description());
  }
  nodes.push_back(node);
  for (const CLI::App* sub : subcommands) {
    if (!sub->get_group().empty()) Collect(*sub, node, nodes);
  }
}

// Makes a line of a shell's `case`, which sets `variable` to the words. names: more assignments.
std::string CaseLine(const std::string& pattern, const std::vector<std::string>& words,
                     const char* variable, const std::string& names = "") {
  return absl::StrCat("    ", pattern, ") ", names, variable, "=\"", absl::StrJoin(words, " "),
                      "\" ;;\n");
}

// Sets `names` to a kind of names, or to nothing.
std::string SetNames(const std::string& kind) { return absl::StrCat("names=\"", kind, "\"; "); }

struct Cases {
  std::string commands;  // path -> names of its commands
  std::string words;     // path -> all that may follow
  std::string values;    // path:option -> choices
};

Cases MakeCases(const std::vector<Node>& nodes) {
  Cases cases;
  for (const Node& node : nodes) {
    std::vector<std::string> names;
    for (const auto& [name, description] : node.commands) names.push_back(name);
    if (!names.empty())
      absl::StrAppend(&cases.commands, CaseLine("\"" + node.path + "\"", names, "commands"));
    absl::StrAppend(&cases.words, CaseLine("\"" + node.path + "\"", node.Words(), "words_here",
                                           SetNames(node.Kind())));
    for (const OptionWords& option : node.options) {
      if (option.names.empty() || !option.takes_value) continue;
      std::vector<std::string> patterns;
      for (const std::string& name : option.names)
        patterns.push_back(absl::StrCat("\"", node.path, ":", name, "\""));
      absl::StrAppend(&cases.values, CaseLine(absl::StrJoin(patterns, "|"), option.choices,
                                              "values=1; choices", SetNames(option.kind)));
    }
  }
  return cases;
}

// Bash and zsh share this part. It finds the command that the words so far name, and then what may
// come next.
constexpr char kFinder[] = R"(
# Sets `commands` to the commands below the path $1.
_takt_commands() {
  commands=""
  case "$1" in
@COMMANDS@  esac
}

# Sets `words_here`, or `values` and `choices` when the option $2 of the path $1 takes a value; and
# `names` to the kind of names that may stand there.
_takt_next() {
  words_here="" values="" choices="" names=""
  case "$1" in
@WORDS@  esac
  case "$1:$2" in
@VALUES@  esac
}

# Prints the names of kind $1; the words of the line follow it.
_takt_names() {
  local kind="$1"
  shift
  command takt complete "$kind" -- "$@" 2>/dev/null
}

# Sets `where` to the path that the words $@ name.
_takt_path() {
  local word known commands words_here values choices names previous=""
  where="takt"
  for word in "$@"; do
    _takt_next "$where" "$previous"
    previous="$word"
    [ -n "$values" ] && continue
    _takt_commands "$where"
    for known in ${=commands}; do
      if [ "$known" = "$word" ]; then where="$where $word"; break; fi
    done
  done
}
)";

constexpr char kBashEnd[] = R"sh(
_takt() {
  local where words_here values choices names line current="${COMP_WORDS[COMP_CWORD]}"
  _takt_path "${COMP_WORDS[@]:1:COMP_CWORD-1}"
  _takt_next "$where" "${COMP_WORDS[COMP_CWORD-1]}"
  if [ -n "$names" ]; then
    read -ra line <<< "$COMP_LINE"  # COMP_WORDS cuts HOST:PORT in three
    names="$(_takt_names "$names" "${line[@]:1}")"
  fi
  if [ -n "$values" ]; then
    if [ -n "$choices$names" ]; then
      COMPREPLY=($(compgen -W "$choices $names" -- "$current"))
    else
      COMPREPLY=($(compgen -f -- "$current"))
    fi
    return
  fi
  COMPREPLY=($(compgen -W "$words_here $names" -- "$current"))
  if [ ${#COMPREPLY[@]} -eq 0 ]; then
    COMPREPLY=($(compgen -f -- "$current"))
  fi
}
complete -o filenames -F _takt takt
)sh";

constexpr char kZshEnd[] = R"sh(
_takt() {
  local where words_here values choices names
  _takt_path "${(@)words[2,CURRENT-1]}"
  _takt_next "$where" "${words[CURRENT-1]}"
  if [ -n "$names" ]; then names="$(_takt_names "$names" "${(@)words[2,-1]}")"; fi
  if [ -n "$values" ]; then
    if [ -n "$choices$names" ]; then compadd -- ${=choices} ${=names}; else _files; fi
    return
  fi
  compadd -- ${=words_here} ${=names}
  _files
}
if [ "${funcstack[1]}" = "_takt" ]; then _takt "$@"; else compdef _takt takt; fi
)sh";

std::string FilledFinder(const Cases& cases) {
  return absl::StrReplaceAll(
      kFinder,
      {{"@COMMANDS@", cases.commands}, {"@WORDS@", cases.words}, {"@VALUES@", cases.values}});
}

std::string FishQuoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"'", "\\'"}}), "'");
}

std::string FishScript(const std::vector<Node>& nodes) {
  std::string script = R"(# Completion of takt for fish.
function __takt_at
    set -l path takt
    for word in (commandline -opc)[2..-1]
        contains -- "$path $word" $__takt_paths; and set path "$path $word"
    end
    test "$path" = "$argv"
end
function __takt_names
    command takt complete $argv[1] -- (commandline -opc)[2..-1] 2>/dev/null
end
)";
  absl::StrAppend(&script, "set -g __takt_paths");
  for (const Node& node : nodes) absl::StrAppend(&script, " ", FishQuoted(node.path));
  absl::StrAppend(&script, "\n");
  for (const Node& node : nodes) {
    const std::string at =
        absl::StrCat("complete -c takt -n ", FishQuoted("__takt_at " + node.path));
    for (const auto& [name, description] : node.commands) {
      absl::StrAppend(&script, at, " -f -a ", FishQuoted(name), " -d ", FishQuoted(description),
                      "\n");
    }
    for (const OptionWords& option : node.options) {
      std::string line = at;
      for (const std::string& name : option.names) {
        absl::StrAppend(&line, name[1] == '-' ? " -l " : " -s ",
                        name.substr(name[1] == '-' ? 2 : 1));
      }
      if (!option.names.empty() && option.takes_value) absl::StrAppend(&line, " -r");
      if (!option.kind.empty()) {
        absl::StrAppend(&line, " -f -a ", FishQuoted("(__takt_names " + option.kind + ")"));
      } else if (!option.choices.empty()) {
        absl::StrAppend(&line, " -f -a ", FishQuoted(absl::StrJoin(option.choices, " ")));
      } else if (option.names.empty()) {
        continue;
      }
      absl::StrAppend(&script, line, " -d ", FishQuoted(option.description), "\n");
    }
  }
  return script;
}

}  // namespace

std::string CompletionScript(const CLI::App& app, const std::string& shell) {
  std::vector<Node> nodes;
  Collect(app, Node(), nodes);
  if (shell == "fish") return FishScript(nodes);
  const std::string finder = FilledFinder(MakeCases(nodes));
  if (shell == "zsh")
    return absl::StrCat("#compdef takt\n# Completion of takt for zsh.", finder, kZshEnd);
  TAKT_CHECK(shell == "bash");
  // ${=name} makes zsh split the words; bash does so by itself.
  return absl::StrCat("# Completion of takt for bash.",
                      absl::StrReplaceAll(finder, {{"${=commands}", "$commands"}}), kBashEnd);
}

}  // namespace takt::cli
