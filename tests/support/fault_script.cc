#include "tests/support/fault_script.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace lynx::testing {
namespace {

// What follows the name in a line.
enum class Form : uint8_t { kNumbers, kNumber, kNode, kNodeNumber };
struct Word {
  const char* name;
  Form form;
};
constexpr Word kWords[kFaultOps] = {
    {"submit", Form::kNumbers},   {"cancel", Form::kNumber},   {"kill", Form::kNode},
    {"start", Form::kNode},       {"freeze", Form::kNode},     {"thaw", Form::kNode},
    {"cut", Form::kNode},         {"heal", Form::kNode},       {"drain", Form::kNode},
    {"restart", Form::kNode},     {"drop", Form::kNodeNumber}, {"double", Form::kNodeNumber},
    {"delay", Form::kNodeNumber}, {"lose", Form::kNodeNumber}, {"corrupt", Form::kNodeNumber},
    {"fail", Form::kNodeNumber},  {"hang", Form::kNodeNumber}, {"break", Form::kNodeNumber},
    {"twice", Form::kNodeNumber}, {"late", Form::kNodeNumber},
};

bool ParseLine(const std::vector<std::string>& words, FaultEvent& event) {
  if (words.size() < 3 || !absl::SimpleAtoi(words[0], &event.after_ms)) return false;
  const auto word = std::find_if(std::begin(kWords), std::end(kWords),
                                 [&](const Word& w) { return words[1] == w.name; });
  if (word == std::end(kWords)) return false;
  event.op = static_cast<FaultEvent::Op>(word - std::begin(kWords));
  const bool node = word->form == Form::kNode || word->form == Form::kNodeNumber;
  if (node) event.who = words[2];
  if (!node && !absl::SimpleAtoi(words[2], &event.a)) return false;
  if (word->form == Form::kNode || word->form == Form::kNumber) return words.size() == 3;
  return words.size() == 4 && absl::SimpleAtoi(words[3], node ? &event.a : &event.b);
}

}  // namespace

std::string Print(const FaultScript& script) {
  std::string text;
  for (const FaultEvent& event : script) {
    const Word& word = kWords[event.op];
    absl::StrAppend(&text, event.after_ms, " ", word.name, " ");
    if (word.form == Form::kNumbers) absl::StrAppend(&text, event.a, " ", event.b);
    if (word.form == Form::kNumber) absl::StrAppend(&text, event.a);
    if (word.form == Form::kNode) absl::StrAppend(&text, event.who);
    if (word.form == Form::kNodeNumber) absl::StrAppend(&text, event.who, " ", event.a);
    text += '\n';
  }
  return text;
}

absl::StatusOr<FaultScript> ParseFaultScript(const std::string& text) {
  FaultScript script;
  int number = 0;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(text, '\n'))) {
    ++number;
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.empty()) continue;
    if (!ParseLine(words, script.emplace_back())) {
      return absl::InvalidArgumentError(absl::StrCat("line ", number, ": '", line, "'"));
    }
  }
  return script;
}

FaultScript RandomFaults(uint64_t seed, int events, int prefill, int decode) {
  std::mt19937_64 random(seed);
  const auto below = [&](int n) {
    return static_cast<int32_t>(random() % static_cast<uint64_t>(n));
  };
  std::vector<std::string> nodes;
  for (int i = 0; i < prefill; ++i) nodes.push_back(absl::StrCat("prefill-", i));
  for (int i = 0; i < decode; ++i) nodes.push_back(absl::StrCat("decode-", i));
  FaultScript script;
  FaultScript troubles;  // That last: each is ended by the op behind its own.
  int requests = 0;
  while (static_cast<int>(script.size()) < events) {
    FaultEvent event;
    // Mostly close together, so that faults meet; now and then after a node is taken for gone.
    const int32_t kind = below(20);
    event.after_ms = kind == 0 ? below(8000) : kind < 6 ? below(300) : below(20);
    if (below(5) < 2 || requests == 0) {
      event.op = FaultEvent::kSubmit;
      event.a = 1 + below(90);
      event.b = 1 + below(60);
      ++requests;
    } else if (below(12) == 0) {
      event.op = FaultEvent::kCancel;
      event.a = below(requests);
    } else if (!troubles.empty() && below(2) == 0) {
      const auto ends = troubles.begin() + below(static_cast<int>(troubles.size()));
      event.op = static_cast<FaultEvent::Op>(ends->op + 1);
      event.who = ends->who;
      troubles.erase(ends);
    } else {
      constexpr FaultEvent::Op kLasting[] = {FaultEvent::kKill, FaultEvent::kFreeze,
                                             FaultEvent::kCut, FaultEvent::kDrain};
      const bool lasts = below(2) == 0;
      event.op = lasts ? kLasting[below(4)]
                       : static_cast<FaultEvent::Op>(FaultEvent::kDrop +
                                                     below(kFaultOps - FaultEvent::kDrop));
      const bool handoff = event.op >= FaultEvent::kLose;
      event.who = nodes[static_cast<size_t>(below(static_cast<int>(nodes.size())))];
      if (!lasts && !handoff && below(3) == 0) event.who = "router";
      if (lasts) {
        troubles.push_back(event);
      } else {
        event.a = 1 + below(handoff ? 12 : 6);
      }
    }
    script.push_back(std::move(event));
  }
  return script;
}

FaultScript Shrink(FaultScript script, const std::function<bool(const FaultScript&)>& fails,
                   int tries) {
  for (size_t part = (script.size() + 1) / 2; part > 0;) {
    bool shorter = false;
    for (size_t at = 0; at < script.size() && tries > 0;) {
      FaultScript rest;
      int32_t skipped_ms = 0;
      for (size_t i = 0; i < script.size(); ++i) {
        if (i >= at && i < at + part) {
          skipped_ms += script[i].after_ms;
        } else {
          rest.push_back(script[i]);
          rest.back().after_ms += std::exchange(skipped_ms, 0);
        }
      }
      --tries;
      if (!rest.empty() && fails(rest)) {
        script = std::move(rest);
        shorter = true;
      } else {
        at += part;
      }
    }
    if (part == 1 && !shorter) break;
    part = part == 1 ? 1 : (part + 1) / 2;
    if (tries <= 0) break;
  }
  return script;
}

}  // namespace lynx::testing
