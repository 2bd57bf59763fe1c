#include "common/config/flag_set.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/config/config_file.h"

#ifndef LYNX_VERSION
#error "LYNX_VERSION is set by CMake"
#endif

namespace lynx::config {
namespace {

struct Unit {
  const char* name;
  int64_t bytes;
};
// Largest first in each family; binary ones first, so that FormatBytes finds the shortest form.
constexpr std::array<Unit, 9> kUnits = {{{"TiB", int64_t{1} << 40},
                                         {"GiB", int64_t{1} << 30},
                                         {"MiB", int64_t{1} << 20},
                                         {"KiB", int64_t{1} << 10},
                                         {"TB", 1'000'000'000'000},
                                         {"GB", 1'000'000'000},
                                         {"MB", 1'000'000},
                                         {"KB", 1'000},
                                         {"B", 1}}};

std::string EnvName(const std::string& name) {
  return absl::StrCat("LYNX_", absl::AsciiStrToUpper(absl::StrReplaceAll(name, {{"-", "_"}})));
}

std::string Describe(const IntRange& range, const std::function<std::string(int64_t)>& format) {
  const bool low = range.min != IntRange().min;
  const bool high = range.max != IntRange().max;
  if (low && high) return absl::StrCat("[", format(range.min), ", ", format(range.max), "]");
  if (low) return absl::StrCat(">= ", format(range.min));
  if (high) return absl::StrCat("<= ", format(range.max));
  return "";
}

std::string FormatInt(int64_t value) { return absl::StrCat(value); }

std::string Wanted(std::string_view what, const std::string& range) {
  const std::string name(what);
  if (range.empty()) return name;
  return absl::StrCat(name, range.front() == '[' ? " in " : " ", range);
}

}  // namespace

absl::StatusOr<int64_t> ParseBytes(std::string_view text) {
  absl::string_view number(text.data(), text.size());
  int64_t unit = 1;
  for (const Unit& candidate : kUnits) {
    if (absl::ConsumeSuffix(&number, candidate.name)) {
      unit = candidate.bytes;
      break;
    }
  }
  const std::string error = absl::StrCat("'", std::string(text), "' is not a size like 64MiB");
  int64_t whole = 0;
  if (absl::SimpleAtoi(number, &whole)) {
    if (whole < 0 || whole > std::numeric_limits<int64_t>::max() / unit) {
      return absl::InvalidArgumentError(error);
    }
    return whole * unit;
  }
  double fraction = 0;
  if (!absl::SimpleAtod(number, &fraction) || !(fraction >= 0) ||
      !(fraction * static_cast<double>(unit) < 9.2e18)) {
    return absl::InvalidArgumentError(error);
  }
  return static_cast<int64_t>(std::llround(fraction * static_cast<double>(unit)));
}

std::string FormatBytes(int64_t bytes) {
  for (const Unit& unit : kUnits) {
    if (unit.bytes % 1024 == 0 && bytes != 0 && bytes % unit.bytes == 0) {
      return absl::StrCat(bytes / unit.bytes, unit.name);
    }
  }
  return absl::StrCat(bytes);
}

struct FlagSet::Option {
  std::string name;
  std::string help;
  std::string type;  // As --help shows it, e.g. "INT in [1, 65535]".
  std::string default_text;
  bool is_flag = false;  // Needs no value on the command line.
  bool is_list = false;
  bool is_secret = false;
  bool is_positional = false;
  bool is_action = false;  // No setting: neither printed nor read from a file.
  bool in_environment = true;
  // Parses and stores; on failure says what was wanted, without the option's name.
  std::function<absl::Status(const std::vector<std::string>&)> set;
  std::function<std::string()> show;
  std::string source = "default";
  std::vector<std::string> from_flags;  // As CLI11 collected them.
  CLI::Option* cli = nullptr;
};

struct FlagSet::Impl {
  std::string program;
  std::string description;
  std::ostream* out = &std::cout;
  std::vector<std::unique_ptr<Option>> options;
  std::string config_path;
  bool check_config = false;
  bool print_config = false;
};

FlagSet::FlagSet(std::string program, std::string description) : impl_(std::make_unique<Impl>()) {
  impl_->program = std::move(program);
  impl_->description = std::move(description);
  AddString("config", &impl_->config_path, "File of `key = value` lines, keys named as the flags");
}
FlagSet::~FlagSet() = default;

void FlagSet::SetOutput(std::ostream* out) { impl_->out = out; }

FlagSet::Option& FlagSet::Declare(const std::string& name, const std::string& help) {
  const bool symbol = name.size() == 1 && name[0] >= 'A' && name[0] <= 'Z';
  LYNX_CHECK_MSG(
      symbol || (!name.empty() && name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") ==
                                      std::string::npos),
      absl::StrCat("option name '", name, "' is not lower-case-with-dashes"));
  for (const auto& option : impl_->options) {
    LYNX_CHECK_MSG(option->name != name, absl::StrCat("option '", name, "' is declared twice"));
  }
  impl_->options.push_back(std::make_unique<Option>());
  Option& option = *impl_->options.back();
  option.name = name;
  option.help = help;
  return option;
}

void FlagSet::AddString(const std::string& name, std::string* field, const std::string& help) {
  Option& option = Declare(name, help);
  option.type = "TEXT";
  option.default_text = *field;
  option.set = [field](const std::vector<std::string>& values) {
    *field = values[0];
    return absl::OkStatus();
  };
  option.show = [field] { return *field; };
}

void FlagSet::AddSecret(const std::string& name, std::string* field, const std::string& help) {
  AddString(name, field, help);
  Option& option = *impl_->options.back();
  option.is_secret = true;
  option.default_text.clear();
  option.show = [field] { return field->empty() ? "<unset>" : "<set>"; };
}

void FlagSet::AddInt(const std::string& name, int64_t* field, IntRange range,
                     const std::string& help) {
  LYNX_CHECK_MSG(*field >= range.min && *field <= range.max,
                 absl::StrCat("default of '", name, "' is out of its range"));
  Option& option = Declare(name, help);
  const std::string bounds = lynx::config::Describe(range, FormatInt);
  option.type = Wanted("INT", bounds);
  option.default_text = absl::StrCat(*field);
  option.set = [field, range, bounds](const std::vector<std::string>& values) {
    int64_t value = 0;
    if (!absl::SimpleAtoi(values[0], &value) || value < range.min || value > range.max) {
      return absl::InvalidArgumentError(Wanted("an integer", bounds));
    }
    *field = value;
    return absl::OkStatus();
  };
  option.show = [field] { return absl::StrCat(*field); };
}

void FlagSet::AddInt(const std::string& name, int32_t* field, IntRange range,
                     const std::string& help) {
  range.min = std::max<int64_t>(range.min, std::numeric_limits<int32_t>::min());
  range.max = std::min<int64_t>(range.max, std::numeric_limits<int32_t>::max());
  auto wide = std::make_shared<int64_t>(*field);
  AddInt(name, wide.get(), range, help);
  Option& option = *impl_->options.back();
  option.set = [field, wide, set = option.set](const std::vector<std::string>& values) {
    LYNX_RETURN_IF_ERROR(set(values));
    *field = static_cast<int32_t>(*wide);
    return absl::OkStatus();
  };
  option.show = [field] { return absl::StrCat(*field); };
}

void FlagSet::AddDouble(const std::string& name, double* field, DoubleRange range,
                        const std::string& help) {
  LYNX_CHECK_MSG(*field >= range.min && *field <= range.max,
                 absl::StrCat("default of '", name, "' is out of its range"));
  Option& option = Declare(name, help);
  const bool low = range.min != DoubleRange().min;
  const bool high = range.max != DoubleRange().max;
  std::string bounds;
  if (low && high) {
    bounds = absl::StrCat("[", range.min, ", ", range.max, "]");
  } else if (low) {
    bounds = absl::StrCat(">= ", range.min);
  } else if (high) {
    bounds = absl::StrCat("<= ", range.max);
  }
  option.type = Wanted("NUMBER", bounds);
  option.default_text = absl::StrCat(*field);
  option.set = [field, range, bounds](const std::vector<std::string>& values) {
    double value = 0;
    // The negated comparison refuses NaN.
    if (!absl::SimpleAtod(values[0], &value) || !(value >= range.min && value <= range.max)) {
      return absl::InvalidArgumentError(Wanted("a finite number", bounds));
    }
    *field = value;
    return absl::OkStatus();
  };
  // Whatever is printed reads as the very same number.
  option.show = [field] {
    std::array<char, 32> text;
    return std::string(text.data(),
                       std::to_chars(text.data(), text.data() + text.size(), *field).ptr);
  };
}

void FlagSet::AddBool(const std::string& name, bool* field, const std::string& help) {
  Option& option = Declare(name, help);
  option.is_flag = true;
  option.default_text = *field ? "true" : "false";
  option.set = [field](const std::vector<std::string>& values) {
    if (values[0] != "true" && values[0] != "false" && values[0] != "1" && values[0] != "0") {
      return absl::InvalidArgumentError("true or false");
    }
    *field = values[0] == "true" || values[0] == "1";
    return absl::OkStatus();
  };
  option.show = [field] { return *field ? "true" : "false"; };
}

void FlagSet::AddDuration(const std::string& name, absl::Duration* field, DurationRange range,
                          const std::string& help) {
  LYNX_CHECK_MSG(*field >= range.min && *field <= range.max,
                 absl::StrCat("default of '", name, "' is out of its range"));
  Option& option = Declare(name, help);
  const std::string bounds = range.max == absl::InfiniteDuration()
                                 ? absl::StrCat(">= ", absl::FormatDuration(range.min))
                                 : absl::StrCat("[", absl::FormatDuration(range.min), ", ",
                                                absl::FormatDuration(range.max), "]");
  option.type = Wanted("DURATION", bounds);
  option.default_text = absl::FormatDuration(*field);
  option.set = [field, range, bounds](const std::vector<std::string>& values) {
    absl::Duration value;
    if (!absl::ParseDuration(values[0], &value) || value < range.min || value > range.max ||
        value == absl::InfiniteDuration()) {
      return absl::InvalidArgumentError(Wanted("a duration like 500ms", bounds));
    }
    *field = value;
    return absl::OkStatus();
  };
  option.show = [field] { return absl::FormatDuration(*field); };
}

void FlagSet::AddBytes(const std::string& name, int64_t* field, IntRange range,
                       const std::string& help) {
  range.min = std::max<int64_t>(range.min, 0);
  LYNX_CHECK_MSG(*field >= range.min && *field <= range.max,
                 absl::StrCat("default of '", name, "' is out of its range"));
  Option& option = Declare(name, help);
  const std::string bounds = lynx::config::Describe(range, FormatBytes);
  option.type = Wanted("BYTES", bounds);
  option.default_text = FormatBytes(*field);
  option.set = [field, range, bounds](const std::vector<std::string>& values) {
    const absl::StatusOr<int64_t> value = ParseBytes(values[0]);
    if (!value.ok() || *value < range.min || *value > range.max) {
      return absl::InvalidArgumentError(Wanted("a size like 64MiB", bounds));
    }
    *field = *value;
    return absl::OkStatus();
  };
  option.show = [field] { return FormatBytes(*field); };
}

void FlagSet::AddStrings(const std::string& name, std::vector<std::string>* field,
                         const std::string& help) {
  Option& option = Declare(name, help);
  option.type = "TEXT,...";
  option.is_list = true;
  option.default_text = absl::StrJoin(*field, ",");
  option.set = [field](const std::vector<std::string>& values) {
    field->clear();
    for (const std::string& value : values) {
      if (value.empty()) continue;
      for (const absl::string_view part : absl::StrSplit(value, ',')) {
        field->emplace_back(absl::StripAsciiWhitespace(part));
        if (field->back().empty()) return absl::InvalidArgumentError("a list without empty items");
      }
    }
    return absl::OkStatus();
  };
  option.show = [field] { return absl::StrJoin(*field, ","); };
}

void FlagSet::AddChoice(const std::string& name, std::string* field,
                        const std::vector<std::string>& choices, const std::string& help) {
  const auto is_choice = [](const std::vector<std::string>& all, const std::string& value) {
    return std::find(all.begin(), all.end(), value) != all.end();
  };
  LYNX_CHECK_MSG(is_choice(choices, *field),
                 absl::StrCat("default of '", name, "' is not one of its choices"));
  Option& option = Declare(name, help);
  option.type = absl::StrJoin(choices, "|");
  option.default_text = *field;
  option.set = [field, choices, is_choice](const std::vector<std::string>& values) {
    if (!is_choice(choices, values[0])) {
      return absl::InvalidArgumentError(absl::StrCat("one of ", absl::StrJoin(choices, ", ")));
    }
    *field = values[0];
    return absl::OkStatus();
  };
  option.show = [field] { return *field; };
}

void FlagSet::AddPositional(const std::string& name, std::string* field, const std::string& help) {
  AddString(name, field, help);
  impl_->options.back()->is_positional = true;
  impl_->options.back()->in_environment = false;
}

void FlagSet::AddConfigActions() {
  AddBool("check-config", &impl_->check_config,
          "check options and files of options, start nothing, and exit");
  AddBool("print-config", &impl_->print_config, "print the effective options as a file and exit");
  for (auto it = impl_->options.end() - 2; it != impl_->options.end(); ++it) {
    (*it)->is_action = true;
    (*it)->in_environment = false;
  }
}

void FlagSet::IgnoreEnvironment(const std::string& name) {
  for (const auto& option : impl_->options) {
    if (option->name == name) {
      option->in_environment = false;
      return;
    }
  }
  LYNX_CHECK_MSG(false, absl::StrCat("no option '", name, "'"));
}

namespace {

// CLI11 collects the raw words and prints help; what they mean is decided in one place for flag,
// environment and file alike. (Its own precedence puts the file before the environment.)
absl::StatusOr<ParseOutcome> ParseCommandLine(CLI::App& app, int argc, const char* const* argv,
                                              std::ostream& out) {
  // CLI11 takes the next word for the value of `--name=`.
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    const bool empty = word.starts_with("--") && word.find('=') == word.size() - 1;
    if (empty) word.pop_back();
    words.push_back(std::move(word));
    if (empty) words.emplace_back();
  }
  std::reverse(words.begin(), words.end());  // As CLI11 wants them.
  try {
    app.parse(std::move(words));
  } catch (const CLI::CallForHelp&) {
    out << app.help();
    return ParseOutcome::kPrinted;
  } catch (const CLI::CallForVersion&) {
    out << app.version() << "\n";
    return ParseOutcome::kPrinted;
  } catch (const CLI::ExtrasError& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown argument: ", absl::StrJoin(app.remaining(), " "), " (see --help)"));
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(absl::StrCat(error.what(), " (see --help)"));
  }
  return ParseOutcome::kRun;
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  try {
    std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (file.is_open()) return text;
  } catch (const std::exception&) {  // A folder opens, and throws when read.
  }
  return absl::NotFoundError(absl::StrCat("cannot read config file ", path));
}

}  // namespace

std::string_view Version() { return LYNX_VERSION; }

absl::StatusOr<ParseOutcome> FlagSet::Parse(int argc, const char* const* argv) {
  CLI::App app(impl_->description, impl_->program);
  app.set_help_flag("-h,--help", "Print this help and exit");
  app.set_version_flag("--version", absl::StrCat(impl_->program, " ", std::string(Version())),
                       "Print the version and exit");
  for (const auto& option : impl_->options) {
    const std::string flag =
        option->is_positional ? option->name : absl::StrCat("--", option->name);
    std::string help = option->help;
    if (!option->default_text.empty()) absl::StrAppend(&help, ", default ", option->default_text);
    if (option->in_environment) absl::StrAppend(&help, " (", EnvName(option->name), ")");
    if (option->is_flag) {
      option->cli = app.add_flag(flag, option->from_flags, help);
    } else {
      option->cli = app.add_option(flag, option->from_flags, help);
      option->cli->type_name(option->type);
      // One value per occurrence, so that a value may look like anything.
      option->cli->expected(1)->allow_extra_args(false);
      option->cli->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    }
  }
  const char* const empty_argv[] = {impl_->program.c_str()};
  if (argc == 0) {
    argc = 1;
    argv = empty_argv;
  }
  LYNX_ASSIGN_OR_RETURN(const ParseOutcome outcome, ParseCommandLine(app, argc, argv, *impl_->out));
  if (outcome == ParseOutcome::kPrinted) return outcome;

  const auto set = [](Option& option, const std::vector<std::string>& values,
                      const std::string& source, const std::string& where) -> absl::Status {
    option.source = source;
    absl::Status status = !option.is_list && values.size() != 1
                              ? absl::InvalidArgumentError("one value")
                              : option.set(values);
    if (status.ok()) return status;
    const std::string given =
        option.is_secret ? "<hidden>" : absl::StrCat("'", absl::StrJoin(values, ","), "'");
    return absl::InvalidArgumentError(absl::StrCat("--", option.name, ": ", given, " from ", where,
                                                   ", wanted ", std::string(status.message())));
  };

  std::set<const Option*> given;
  for (const auto& option : impl_->options) {
    std::vector<std::string> values = option->cli->results();
    if (option->cli->count() > 0) {
      LYNX_RETURN_IF_ERROR(set(*option, values, "flag", "the command line"));
      given.insert(option.get());
      continue;
    }
    if (!option->in_environment) continue;
    const std::string variable = EnvName(option->name);
    if (const char* value = std::getenv(variable.c_str()); value != nullptr) {
      LYNX_RETURN_IF_ERROR(
          set(*option, {value}, "environment", absl::StrCat("variable ", variable)));
      given.insert(option.get());
    }
  }
  if (impl_->config_path.empty()) return ParseOutcome::kRun;

  LYNX_ASSIGN_OR_RETURN(const std::string text, ReadFile(impl_->config_path));
  LYNX_ASSIGN_OR_RETURN(const std::vector<ConfigEntry> entries,
                        ParseConfigFile(text, impl_->config_path));
  for (const ConfigEntry& entry : entries) {
    const std::string where = absl::StrCat(impl_->config_path, ":", entry.line);
    const auto option =
        std::find_if(impl_->options.begin(), impl_->options.end(), [&](const auto& candidate) {
          return candidate->name == entry.key && !candidate->is_positional &&
                 !candidate->is_action && candidate->name != "config";
        });
    if (option == impl_->options.end()) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": unknown key '", entry.key, "'"));
    }
    if (given.contains(option->get())) continue;
    LYNX_RETURN_IF_ERROR(set(**option, entry.values, "file", where));
  }
  return ParseOutcome::kRun;
}

std::string FlagSet::Describe() const {
  std::string text;
  for (const auto& option : impl_->options) {
    if (option->is_action) continue;
    absl::StrAppend(&text, text.empty() ? "" : " ", option->name, "=", option->show(), " (",
                    option->source, ")");
  }
  return text;
}

std::string FlagSet::ToConfigFile() const {
  std::string text;
  for (const auto& option : impl_->options) {
    if (option->is_action || option->is_positional || option->name == "config") continue;
    const std::string value = option->show();
    if (option->is_secret) {
      absl::StrAppend(&text, "# ", option->name, " is ", value, "\n");
      continue;
    }
    absl::StrAppend(&text, option->name, " = ");
    if (option->is_list) {
      const std::vector<std::string> items = absl::StrSplit(value, ',', absl::SkipEmpty());
      absl::StrAppend(&text, "[",
                      absl::StrJoin(items, ", ",
                                    [](std::string* out, const auto& item) {
                                      out->append(QuoteConfigValue(item));
                                    }),
                      "]");
    } else {
      text += QuoteConfigValue(value);
    }
    if (option->source != "default") absl::StrAppend(&text, "  # ", option->source);
    text += '\n';
  }
  return text;
}

bool FlagSet::AnswerConfigActions() const {
  if (impl_->print_config) *impl_->out << ToConfigFile();
  if (impl_->check_config) *impl_->out << impl_->program << ": the configuration is fine\n";
  return HasConfigAction();
}

bool FlagSet::HasConfigAction() const { return impl_->print_config || impl_->check_config; }

std::vector<std::pair<std::string, std::string>> FlagSet::Values() const {
  std::vector<std::pair<std::string, std::string>> values;
  for (const auto& option : impl_->options) {
    if (option->name != "config" && !option->is_action)
      values.emplace_back(option->name, option->show());
  }
  return values;
}

}  // namespace lynx::config
