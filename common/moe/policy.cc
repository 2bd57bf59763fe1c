#include "common/moe/policy.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace lynx::moe {
namespace {

using Kind = Policy::Kind;

constexpr int32_t kMaxCount = 1'000'000;  // No model has as many experts.
constexpr double kMaxReal = 1e9;

constexpr struct {
  Kind kind;
  std::string_view name;
  std::string_view keys;  // What it takes, each followed by a space.
} kKinds[] = {
    {Kind::kExact, "exact", ""},
    {Kind::kPrune, "prune", "k0 "},
    {Kind::kVote, "vote", "M floor ep_balance "},
    {Kind::kLynxCompat, "lynx_compat", "alpha beta "},
    {Kind::kLynx, "lynx", "alpha beta floor self_scaled ep_balance "},
    {Kind::kOea, "oea", "k0 ep_balance "},
    {Kind::kBudget, "budget", "M fraction floor coverage row_coverage ep_balance "},
    {Kind::kMarginal, "marginal", "lambda floor ep_balance "},
    {Kind::kAuto, "auto", ""},
};

std::string_view KeysOf(Kind kind) { return kKinds[static_cast<size_t>(kind)].keys; }

bool Takes(Kind kind, std::string_view key) {
  std::string_view rest = KeysOf(kind);
  while (!rest.empty()) {
    const size_t space = rest.find(' ');
    if (rest.substr(0, space) == key) return true;
    rest.remove_prefix(space + 1);
  }
  return false;
}

// Absl's pieces are not std's in every build of Abseil.
std::string Text(std::string_view text) { return std::string(text); }

// For messages: what a client sent may be long.
std::string Shown(std::string_view text) {
  return text.size() <= 40 ? Text(text) : absl::StrCat(Text(text.substr(0, 40)), "...");
}

std::string NameList() {
  std::string names;
  for (const auto& entry : kKinds) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", Text(entry.name));
  }
  return names;
}

constexpr char kParameterPayload[] = "lynx.moe/parameter";

absl::Status About(std::string_view key, const std::string& message) {
  absl::Status status = absl::InvalidArgumentError(message);
  status.SetPayload(kParameterPayload, absl::Cord(Text(key)));
  return status;
}

absl::Status Wrong(std::string_view policy, std::string_view key, std::string_view value,
                   std::string_view allowed) {
  return About(key, absl::StrCat("policy ", Text(policy), ": ", Text(key), " is '", Shown(value),
                                 "': must be ", Text(allowed)));
}

bool ReadDouble(std::string_view text, double& value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end && std::isfinite(value);
}

bool ReadInt(std::string_view text, int32_t& value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end;
}

// The shortest text that reads back as `value`.
std::string Number(double value) {
  char buffer[32];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, value);
  return error == std::errc() ? std::string(buffer, end) : "nan";
}

absl::Status SetParameter(std::string_view name, std::string_view key, std::string_view value,
                          Policy& policy) {
  const auto count = [&](int32_t& field, int32_t least) {
    if (!ReadInt(value, field) || field < least || field > kMaxCount) {
      return Wrong(name, key, value,
                   absl::StrCat("an integer of at least ", least, " and at most ", kMaxCount));
    }
    return absl::OkStatus();
  };
  const auto share = [&](double& field) {
    if (!ReadDouble(value, field) || field <= 0 || field > 1) {
      return Wrong(name, key, value, "above 0 and at most 1");
    }
    return absl::OkStatus();
  };
  if (key == "alpha") {
    if (!ReadDouble(value, policy.alpha) || policy.alpha <= 0 || policy.alpha > kMaxReal) {
      return Wrong(name, key, value, "a number above 0 and at most 1e9");
    }
    return absl::OkStatus();
  }
  if (key == "beta") {
    if (value == "none") {
      policy.beta = Policy::kUnbounded;
    } else if (!ReadInt(value, policy.beta) || policy.beta < 0 || policy.beta > kMaxCount) {
      return Wrong(name, key, value,
                   absl::StrCat("an integer of at least 0 and at most ", kMaxCount, ", or none"));
    }
    return absl::OkStatus();
  }
  if (key == "floor") return count(policy.floor, 0);
  if (key == "k0") return count(policy.k0, 1);
  if (key == "M") return count(policy.experts, 1);
  if (key == "fraction") return share(policy.fraction);
  if (key == "coverage") return share(policy.coverage);
  if (key == "row_coverage") return share(policy.row_coverage);
  if (key == "self_scaled") {
    if (value != "true" && value != "false") return Wrong(name, key, value, "true or false");
    policy.self_scaled = value == "true";
    return absl::OkStatus();
  }
  if (key == "ep_balance") {
    if (!ReadDouble(value, policy.ep_balance) || policy.ep_balance < 0 || policy.ep_balance >= 1) {
      return Wrong(name, key, value, "a number from 0 to below 1");
    }
    return absl::OkStatus();
  }
  // lambda, the only one left.
  if (!ReadDouble(value, policy.lambda) || policy.lambda < 0 || policy.lambda > kMaxReal) {
    return Wrong(name, key, value, "a number from 0 to 1e9");
  }
  return absl::OkStatus();
}

// What no preset can supply, and what excludes what.
absl::Status CheckComplete(const Policy& policy) {
  const auto bad = [&](std::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("policy ", Text(KindName(policy.kind)), " ", Text(what)));
  };
  switch (policy.kind) {
    case Kind::kPrune:
      if (policy.k0 == Policy::kUnset) return bad("needs k0");
      break;
    case Kind::kVote:
      if (policy.experts == Policy::kUnset) return bad("needs M");
      break;
    case Kind::kBudget: {
      const bool sized = policy.experts != Policy::kUnset;
      if (sized && policy.fraction > 0) return bad("takes M or fraction, not both");
      if (policy.coverage > 0 && policy.row_coverage > 0) {
        return bad("takes coverage or row_coverage, not both");
      }
      if (!sized && policy.fraction <= 0 && policy.coverage <= 0 && policy.row_coverage <= 0) {
        return bad("needs M, fraction, coverage or row_coverage");
      }
      break;
    }
    case Kind::kMarginal:
      if (policy.lambda < 0) return bad("needs lambda");
      break;
    default:
      break;
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view KindName(Kind kind) { return kKinds[static_cast<size_t>(kind)].name; }

absl::StatusOr<Policy> MakePolicy(std::string_view name,
                                  std::span<const std::pair<std::string, std::string>> parameters) {
  const auto* const known = std::find_if(std::begin(kKinds), std::end(kKinds),
                                         [&](const auto& entry) { return entry.name == name; });
  if (known == std::end(kKinds)) {
    return absl::InvalidArgumentError(
        absl::StrCat("no policy '", Shown(name), "'; there are ", NameList()));
  }
  Policy policy{.kind = known->kind};
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& [key, value] = parameters[i];
    if (!Takes(known->kind, key)) {
      return About(
          key,
          absl::StrCat("policy ", Text(name), " takes no '", Shown(key), "'; it takes ",
                       known->keys.empty() ? "nothing"
                                           : Text(known->keys.substr(0, known->keys.size() - 1))));
    }
    for (size_t j = 0; j < i; ++j) {
      if (parameters[j].first == key) {
        return About(key, absl::StrCat("policy ", Text(name), ": ", key, " is given twice"));
      }
    }
    LYNX_RETURN_IF_ERROR(SetParameter(name, key, value, policy));
  }
  LYNX_RETURN_IF_ERROR(CheckComplete(policy));
  const bool by_preset =
      (policy.kind == Kind::kLynx) && policy.alpha == 0 && policy.beta == Policy::kUnset;
  if (Takes(policy.kind, "floor") && policy.floor == Policy::kUnset && !by_preset) policy.floor = 0;
  return policy;
}

absl::StatusOr<Policy> ParsePolicy(std::string_view text) {
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  std::vector<std::pair<std::string, std::string>> parameters;
  std::string_view rest = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos || equals == 0 || parameters.size() >= 16) {
      return absl::InvalidArgumentError(
          absl::StrCat("policy '", Shown(text), "': must be name:key=value,key=value"));
    }
    parameters.emplace_back(item.substr(0, equals), item.substr(equals + 1));
    rest = comma == std::string_view::npos ? "" : rest.substr(comma + 1);
  }
  return MakePolicy(name, parameters);
}

std::string ParameterOf(const absl::Status& error) {
  const auto key = error.GetPayload(kParameterPayload);
  return key.has_value() ? std::string(*key) : std::string();
}

std::string ToString(const Policy& policy) {
  std::string text(KindName(policy.kind));
  char separator = ':';
  const auto add = [&](std::string_view key, std::string_view value) {
    text.push_back(separator);
    separator = ',';
    absl::StrAppend(&text, Text(key), "=", Text(value));
  };
  const auto add_count = [&](std::string_view key, int32_t value) {
    if (value != Policy::kUnset) add(key, absl::StrCat(value));
  };
  const auto add_share = [&](std::string_view key, double value) {
    if (value > 0) add(key, Number(value));
  };
  add_share("alpha", policy.alpha);
  if (policy.beta == Policy::kUnbounded) {
    add("beta", "none");
  } else {
    add_count("beta", policy.beta);
  }
  add_count("k0", policy.k0);
  add_count("M", policy.experts);
  add_share("fraction", policy.fraction);
  add_share("coverage", policy.coverage);
  add_share("row_coverage", policy.row_coverage);
  if (policy.lambda >= 0) add("lambda", Number(policy.lambda));
  add_count("floor", policy.floor);
  if (policy.self_scaled) add("self_scaled", "true");
  if (policy.ep_balance >= 0) add("ep_balance", Number(policy.ep_balance));
  return text;
}

absl::Status CheckPolicy(const Policy& policy, int32_t experts, int32_t top_k) {
  LYNX_RETURN_IF_ERROR(CheckComplete(policy));
  const std::string_view name = KindName(policy.kind);
  const auto within = [&](std::string_view key, int32_t value, int32_t least, int32_t most,
                          std::string_view why) {
    if (value >= least && value <= most) return absl::OkStatus();
    return Wrong(name, key, value == Policy::kUnset ? "not given" : absl::StrCat(value),
                 absl::StrCat("in [", least, ", ", most, "], ", Text(why)));
  };
  constexpr std::string_view kWithinTopK = "as a row of this model uses that many experts";
  if (Takes(policy.kind, "alpha")) {
    if (!(policy.alpha > 0) || !std::isfinite(policy.alpha)) {
      return Wrong(name, "alpha", policy.alpha == 0 ? "not given" : Number(policy.alpha),
                   "a number above 0");
    }
    if (policy.beta < 0 && policy.beta != Policy::kUnbounded) {
      return Wrong(name, "beta",
                   policy.beta == Policy::kUnset ? "not given" : absl::StrCat(policy.beta),
                   "an integer of at least 0, or none");
    }
  }
  if (Takes(policy.kind, "floor")) {
    LYNX_RETURN_IF_ERROR(within("floor", policy.kept_ranks(), 0, top_k, kWithinTopK));
  }
  if (Takes(policy.kind, "k0")) {
    LYNX_RETURN_IF_ERROR(within("k0", policy.k0, 1, top_k, kWithinTopK));
  }
  if (Takes(policy.kind, "M") && policy.experts != Policy::kUnset) {
    LYNX_RETURN_IF_ERROR(within("M", policy.experts, top_k, experts,
                                "from the experts of one row to those of a layer"));
  }
  return absl::OkStatus();
}

}  // namespace lynx::moe
