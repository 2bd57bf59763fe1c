#include "common/text/internal/jinja/functions.h"

#include <unicode/bytestream.h>
#include <unicode/casemap.h>
#include <unicode/uchar.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <optional>
#include <set>
#include <span>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/text/internal/jinja/format.h"
#include "common/text/internal/pre_tokenizer.h"

namespace lynx::text::jinja {
namespace {

using Params = std::vector<std::string_view>;
using Bound = std::vector<std::optional<Value>>;
using FilterFunction = absl::StatusOr<Value> (*)(const Value&, const Bound&, Budget&);

// Of a byte of text that is looked at character by character.
constexpr int64_t kCodePointCost = 4;

absl::Status Bad(std::string message) { return absl::InvalidArgumentError(std::move(message)); }

// Puts arguments into the places of `params`.
absl::StatusOr<Bound> Bind(std::string_view function, const Params& params, const Arguments& args) {
  if (args.positional.size() > params.size()) {
    return Bad(absl::StrCat(std::string(function), "() takes at most ", params.size(),
                            " arguments, not ", args.positional.size()));
  }
  Bound bound(params.size());
  for (size_t i = 0; i < args.positional.size(); ++i) bound[i] = args.positional[i];
  for (const auto& [name, value] : args.named) {
    const auto param = std::find(params.begin(), params.end(), name);
    if (param == params.end()) {
      return Bad(absl::StrCat(std::string(function), "() has no argument '", name, "'"));
    }
    bound[static_cast<size_t>(param - params.begin())] = value;
  }
  return bound;
}

absl::StatusOr<std::string> StringOf(const std::optional<Value>& value, std::string_view what) {
  if (!value.has_value() || !value->is_string()) {
    return Bad(absl::StrCat(std::string(what), " must be a string"));
  }
  return value->as_string();
}

absl::StatusOr<int64_t> IntOf(const std::optional<Value>& value, int64_t absent,
                              std::string_view what) {
  if (!value.has_value()) return absent;
  if (!value->is_integral()) return Bad(absl::StrCat(std::string(what), " must be an integer"));
  return value->as_int();
}

absl::StatusOr<Text> TextOf(const std::optional<Value>& value, std::string_view what) {
  LYNX_RETURN_IF_ERROR(StringOf(value, what).status());
  return value->as_text();
}

bool FlagOf(const std::optional<Value>& value, bool absent) {
  return value.has_value() ? Truthy(*value) : absent;
}

absl::StatusOr<std::string> MapCase(const std::string& text, bool upper) {
  UErrorCode error = U_ZERO_ERROR;
  std::string out;
  icu::StringByteSink<std::string> sink(&out);
  const icu::StringPiece piece(text.data(), static_cast<int32_t>(text.size()));
  if (upper) {
    icu::CaseMap::utf8ToUpper("", 0, piece, sink, nullptr, error);
  } else {
    icu::CaseMap::utf8ToLower("", 0, piece, sink, nullptr, error);
  }
  if (U_FAILURE(error)) return absl::InternalError("changing case failed");
  return out;
}

// What Python writes a word's first character as: 'ß' becomes "Ss".
absl::StatusOr<std::string> TitleCase(std::string_view character) {
  UErrorCode error = U_ZERO_ERROR;
  std::string out;
  icu::StringByteSink<std::string> sink(&out);
  icu::CaseMap::utf8ToTitle("", U_TITLECASE_WHOLE_STRING | U_TITLECASE_NO_BREAK_ADJUSTMENT, nullptr,
                            {character.data(), static_cast<int32_t>(character.size())}, sink,
                            nullptr, error);
  if (U_FAILURE(error)) return absl::InternalError("changing case failed");
  return out;
}

absl::StatusOr<std::string> Capitalize(const std::string& text) {
  const std::vector<std::string_view> characters = CodePoints(text);
  if (characters.empty()) return text;
  LYNX_ASSIGN_OR_RETURN(const std::string first, TitleCase(characters[0]));
  LYNX_ASSIGN_OR_RETURN(const std::string rest, MapCase(text.substr(characters[0].size()), false));
  return first + rest;
}

UChar32 CodePointOf(std::string_view character) {
  UChar32 c = 0;
  int32_t at = 0;
  U8_NEXT_OR_FFFD(reinterpret_cast<const uint8_t*>(character.data()), at,
                  static_cast<int32_t>(character.size()), c);
  return c;
}

bool IsCased(std::string_view character) {
  return u_hasBinaryProperty(CodePointOf(character), UCHAR_CASED);
}

// A sigma that ends a word has a form of its own. `rest` is what follows.
std::string_view LowerSigma(std::span<const std::string_view> rest) {
  const auto next = std::find_if(rest.begin(), rest.end(), [](std::string_view character) {
    return !u_hasBinaryProperty(CodePointOf(character), UCHAR_CASE_IGNORABLE);
  });
  return next != rest.end() && IsCased(*next) ? "σ" : "ς";
}

// str.title(): what follows no letter with a case begins a word.
absl::StatusOr<std::string> Title(const std::string& text) {
  const std::vector<std::string_view> characters = CodePoints(text);
  std::string out;
  bool starts = true;
  for (size_t i = 0; i < characters.size(); ++i) {
    const std::string_view character = characters[i];
    if (!starts && character == "Σ") {
      out += LowerSigma(std::span(characters).subspan(i + 1));
    } else {
      LYNX_ASSIGN_OR_RETURN(const std::string mapped,
                            starts ? TitleCase(character) : MapCase(std::string(character), false));
      out += mapped;
    }
    starts = !IsCased(character);
  }
  return out;
}

// The filter, which goes by separators.
absl::StatusOr<std::string> TitleWords(const std::string& text) {
  constexpr std::string_view kSeparators = "-({[<";
  std::string out;
  bool starts = true;
  for (const std::string_view character : CodePoints(text)) {
    LYNX_ASSIGN_OR_RETURN(const std::string mapped, MapCase(std::string(character), starts));
    out += mapped;
    starts = IsSpace(character) || kSeparators.find(character) != std::string_view::npos;
  }
  return out;
}

// Strips characters of `set`, or white space when there is none.
absl::StatusOr<Value> Strip(const Text& text, const std::optional<Value>& set, bool left,
                            bool right) {
  if (!set.has_value() || set->is_none()) {
    return Value(text.Part(StripSpace(text.bytes(), left, right)));
  }
  LYNX_ASSIGN_OR_RETURN(const std::string chars, StringOf(set, "what to strip"));
  const std::vector<std::string_view> stripped = CodePoints(chars);
  const std::vector<std::string_view> all = CodePoints(text.bytes());
  const auto in_set = [&](std::string_view c) {
    return std::find(stripped.begin(), stripped.end(), c) != stripped.end();
  };
  size_t begin = 0;
  size_t end = all.size();
  while (left && begin < end && in_set(all[begin])) ++begin;
  while (right && end > begin && in_set(all[end - 1])) --end;
  if (begin == end) return Value(std::string());
  const char* first = all[begin].data();
  const auto at = static_cast<size_t>(first - text.bytes().data());
  const char* last = all[end - 1].data() + all[end - 1].size();
  return Value(text.Part(at, at + static_cast<size_t>(last - first)));
}

absl::StatusOr<Value> Replace(const Text& text, const std::string& from, const Text& to,
                              int64_t count, Budget& budget) {
  const std::string& bytes = text.bytes();
  Text out;
  if (from.empty()) {
    size_t at = 0;
    for (const std::string_view c : CodePoints(bytes)) {
      LYNX_RETURN_IF_ERROR(budget.Spend(static_cast<int64_t>(to.size()) + kCodePointCost));
      if (count != 0) out.Append(to);
      if (count > 0) --count;
      out.AppendPart(text, at, at + c.size());
      at += c.size();
    }
    if (count != 0) out.Append(to);
  } else {
    size_t at = 0;
    for (size_t next = 0; count != 0 && (next = bytes.find(from, at)) != std::string::npos;) {
      out.AppendPart(text, at, next);
      out.Append(to);
      at = next + from.size();
      if (count > 0) --count;
      LYNX_RETURN_IF_ERROR(budget.Spend(static_cast<int64_t>(to.size())));
    }
    out.AppendPart(text, at, bytes.size());
  }
  LYNX_RETURN_IF_ERROR(budget.Spend(static_cast<int64_t>(out.size())));
  return Value(std::move(out));
}

std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends = false) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const std::string_view rest = text.substr(i);
    size_t length = 0;
    if (rest.starts_with("\r\n")) {
      length = 2;
    } else if (std::string_view("\n\r\v\f\x1C\x1D\x1E").find(rest[0]) != std::string_view::npos) {
      length = 1;
    } else if (rest.starts_with("\xC2\x85")) {
      length = 2;
    } else if (rest.starts_with("\xE2\x80\xA8") || rest.starts_with("\xE2\x80\xA9")) {
      length = 3;
    }
    if (length > 0) lines.push_back(text.substr(begin, i - begin + (keep_ends ? length : 0)));
    i += std::max<size_t>(length, 1);
    if (length > 0) begin = i;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

// `parts` are views of `text`.
absl::StatusOr<Value> ListOfParts(const Text& text, const std::vector<std::string_view>& parts,
                                  Budget& budget) {
  std::vector<Value> items;
  for (const std::string_view part : parts) {
    LYNX_RETURN_IF_ERROR(budget.Spend(static_cast<int64_t>(part.size()) + 4 * kItemCost));
    items.emplace_back(text.Part(part));
  }
  return MakeList(std::move(items));
}

// The words of `text`, at most `limit` cuts, from either end.
std::vector<std::string_view> SplitBySpace(std::string_view text, int64_t limit, bool from_right) {
  std::vector<std::string_view> parts;
  std::string_view rest = StripSpace(text, !from_right, from_right);
  while (!rest.empty()) {
    if (limit >= 0 && static_cast<int64_t>(parts.size()) >= limit) {
      parts.emplace_back(StripSpace(rest, from_right, !from_right));
      break;
    }
    size_t begin = 0;
    size_t end = rest.size();
    if (from_right) {
      begin = end;
      while (begin > 0) {
        size_t previous = begin - 1;
        while (previous > 0 && (rest[previous] & 0xC0) == 0x80) --previous;
        if (IsSpace(rest.substr(previous, begin - previous))) break;
        begin = previous;
      }
    } else {
      end = 0;
      while (end < rest.size()) {
        const size_t length = std::max<size_t>(1, Utf8SequenceLength(rest.substr(end)));
        if (IsSpace(rest.substr(end, length))) break;
        end += length;
      }
    }
    parts.emplace_back(rest.substr(begin, end - begin));
    rest = from_right ? rest.substr(0, begin) : rest.substr(end);
    rest = StripSpace(rest, !from_right, from_right);
  }
  return parts;
}

absl::StatusOr<Value> Split(const Text& text, const std::optional<Value>& separator, int64_t limit,
                            bool from_right, Budget& budget) {
  LYNX_RETURN_IF_ERROR(budget.Spend(static_cast<int64_t>(text.size()) * kCodePointCost));
  std::vector<std::string_view> parts;
  if (!separator.has_value() || separator->is_none()) {
    parts = SplitBySpace(text.bytes(), limit, from_right);
  } else {
    LYNX_ASSIGN_OR_RETURN(const std::string mark, StringOf(separator, "the separator"));
    if (mark.empty()) return Bad("the separator is empty");
    std::string_view rest = text.bytes();
    for (;;) {
      const bool full = limit >= 0 && static_cast<int64_t>(parts.size()) >= limit;
      const size_t cut = full         ? std::string_view::npos
                         : from_right ? rest.rfind(mark)
                                      : rest.find(mark);
      if (cut == std::string_view::npos) break;
      parts.emplace_back(from_right ? rest.substr(cut + mark.size()) : rest.substr(0, cut));
      rest = from_right ? rest.substr(0, cut) : rest.substr(cut + mark.size());
    }
    parts.emplace_back(rest);
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return ListOfParts(text, parts, budget);
}

// What a method with `start` and `end` looks at.
struct Window {
  std::string_view text;
  int64_t start = 0;  // Characters before it.
};

// As Python clamps them; nothing when they are the wrong way round, where not even '' is found.
absl::StatusOr<std::optional<Window>> WindowOf(std::string_view text,
                                               const std::optional<Value>& start,
                                               const std::optional<Value>& end, Budget& budget) {
  const auto given = [](const std::optional<Value>& bound) {
    return bound.has_value() && !bound->is_none();
  };
  if (!given(start) && !given(end)) return Window{text, 0};
  LYNX_RETURN_IF_ERROR(budget.Spend(static_cast<int64_t>(text.size()) * kCodePointCost));
  const auto count = static_cast<int64_t>(CodePointCount(text));
  const auto bound = [&](const std::optional<Value>& value,
                         int64_t absent) -> absl::StatusOr<int64_t> {
    if (!given(value)) return absent;
    LYNX_ASSIGN_OR_RETURN(const int64_t at, IntOf(value, absent, "a bound"));
    return at < 0 ? std::max<int64_t>(at + count, 0) : at;
  };
  LYNX_ASSIGN_OR_RETURN(const int64_t first, bound(start, 0));
  LYNX_ASSIGN_OR_RETURN(int64_t last, bound(end, count));
  last = std::min(last, count);
  if (first > last) return std::nullopt;
  const auto offset = [text](int64_t characters) {
    size_t at = 0;
    for (; characters > 0; --characters) {
      at += std::max<size_t>(1, Utf8SequenceLength(text.substr(at)));
    }
    return at;
  };
  const size_t begin = offset(first);
  return Window{text.substr(begin, offset(last) - begin), first};
}

absl::StatusOr<bool> HasAffix(std::string_view text, const std::optional<Value>& affix,
                              bool at_end) {
  if (affix.has_value() && affix->list() != nullptr && affix->list()->is_tuple()) {
    for (const Value& one : affix->list()->items) {
      LYNX_ASSIGN_OR_RETURN(const bool has, HasAffix(text, one, at_end));
      if (has) return true;
    }
    return false;
  }
  LYNX_ASSIGN_OR_RETURN(const std::string part, StringOf(affix, "what to look for"));
  return at_end ? text.ends_with(part) : text.starts_with(part);
}

bool AllOf(const std::string& text, bool (*test)(UChar32)) {
  for (const std::string_view character : CodePoints(text)) {
    if (!test(CodePointOf(character))) return false;
  }
  return !text.empty();
}

// A case test is true where some letter has a case and none has the other.
bool HasOnlyCase(const std::string& text, bool upper) {
  bool found = false;
  for (const std::string_view character : CodePoints(text)) {
    const UChar32 c = CodePointOf(character);
    if (upper ? u_isULowercase(c) : u_isUUppercase(c)) return false;
    if (upper ? u_isUUppercase(c) : u_isULowercase(c)) found = true;
  }
  return found;
}

absl::StatusOr<size_t> Length(const Value& value) {
  if (value.is_string()) return CodePointCount(value.as_string());
  if (value.list() != nullptr && !value.list()->is_iterator()) return value.list()->items.size();
  if (value.dict() != nullptr) return value.dict()->items.size();
  if (value.loop() != nullptr) return value.loop()->items.size();
  if (value.is_undefined()) return size_t{0};
  return Bad(absl::StrCat("a ", value.TypeName(), " has no length"));
}

// "a.b.0" of `value`, or `value` itself without a path.
absl::StatusOr<Value> Follow(const Value& value, const std::optional<Value>& path, Budget& budget) {
  if (!path.has_value() || path->is_none()) return value;
  if (path->is_int()) return GetItem(value, *path, budget);
  LYNX_ASSIGN_OR_RETURN(const std::string text, StringOf(path, "'attribute'"));
  Value current = value;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t dot = std::min(text.find('.', begin), text.size());
    const std::string part = text.substr(begin, dot - begin);
    int64_t index = 0;
    LYNX_RETURN_IF_ERROR(budget.Spend(kItemCost));
    const bool is_index = absl::SimpleAtoi(part, &index) && index >= 0;
    LYNX_ASSIGN_OR_RETURN(current, GetItem(current, is_index ? Value(index) : Value(part), budget));
    begin = dot + 1;
  }
  return current;
}

absl::StatusOr<Value> Folded(const Value& value, bool case_sensitive) {
  if (case_sensitive || !value.is_string()) return value;
  LYNX_ASSIGN_OR_RETURN(std::string lower, MapCase(value.as_string(), false));
  return Value(std::move(lower));
}

// More than any budget, and small enough to be multiplied.
int64_t CappedWeight(const Value& value) { return std::min(value.weight(), int64_t{1} << 32); }

// What an item is sorted by: a list of itself, or of what the attributes "a,b" are. Equal ones of
// them need no order.
absl::StatusOr<Value> SortKey(const Value& item, const std::optional<Value>& attribute,
                              bool case_sensitive, Budget& budget) {
  std::vector<Value> parts;
  const auto add = [&](const Value& path) -> absl::Status {
    LYNX_ASSIGN_OR_RETURN(const Value part, Follow(item, path, budget));
    LYNX_ASSIGN_OR_RETURN(Value folded, Folded(part, case_sensitive));
    parts.push_back(std::move(folded));
    return absl::OkStatus();
  };
  if (attribute.has_value() && attribute->is_string()) {
    for (const absl::string_view path : absl::StrSplit(attribute->as_string(), ',')) {
      LYNX_RETURN_IF_ERROR(add(Value(std::string(path))));
    }
  } else {
    LYNX_RETURN_IF_ERROR(add(attribute.value_or(Value(None{}))));
  }
  return MakeList(std::move(parts));
}

// Items with the keys they are compared by, in order.
absl::StatusOr<std::vector<Value>> Sorted(const std::vector<Value>& items,
                                          const std::optional<Value>& attribute,
                                          bool case_sensitive, bool reverse, Budget& budget) {
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : items) {
    LYNX_ASSIGN_OR_RETURN(Value key, SortKey(item, attribute, case_sensitive, budget));
    keyed.emplace_back(std::move(key), item);
  }
  int64_t weight = 0;
  for (const auto& [key, item] : keyed) weight += kItemCost + CappedWeight(key) / 4;
  LYNX_RETURN_IF_ERROR(budget.Spend(weight * 20));  // Not over 2^20 items get here.
  absl::Status fails;                               // Of some pair that has no order.
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    const absl::StatusOr<int> order = Compare(a.first, b.first);
    if (!order.ok()) fails = order.status();
    return order.ok() && (reverse ? *order > 0 : *order < 0);
  });
  LYNX_RETURN_IF_ERROR(fails);
  std::vector<Value> sorted;
  for (auto& [key, item] : keyed) sorted.push_back(std::move(item));
  return sorted;
}

absl::StatusOr<Value> Extreme(const Value& value, const Bound& args, bool largest, Budget& budget) {
  LYNX_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(value));
  std::optional<Value> best;
  std::optional<Value> best_key;
  for (const Value& item : items) {
    LYNX_ASSIGN_OR_RETURN(const Value raw, Follow(item, args[1], budget));
    LYNX_ASSIGN_OR_RETURN(const Value key, Folded(raw, FlagOf(args[0], false)));
    if (best_key.has_value()) {
      LYNX_ASSIGN_OR_RETURN(const int order, Compare(key, *best_key));
      if (largest ? order <= 0 : order >= 0) continue;
    }
    best = item;
    best_key = key;
  }
  return best.has_value() ? *best : Value::MakeUndefined("the extreme of an empty list");
}

// ---- Filters ----

absl::StatusOr<Value> FilterToJson(const Value& value, const Bound& args, Budget& budget) {
  JsonStyle style;
  style.ensure_ascii = FlagOf(args[0], false);
  if (args[1].has_value() && !args[1]->is_none()) {
    if (args[1]->is_string()) {
      style.indent = args[1]->as_string();
    } else {
      LYNX_ASSIGN_OR_RETURN(const int64_t width, IntOf(args[1], 0, "'indent'"));
      if (width > 64) return Bad("'indent' is over 64");
      style.indent = std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
    }
    style.item_separator = std::string(1, ',');
  }
  if (args[2].has_value() && !args[2]->is_none()) {
    const List* pair = args[2]->list();
    if (pair == nullptr || pair->items.size() != 2 || !pair->items[0].is_string() ||
        !pair->items[1].is_string()) {
      return Bad("'separators' must be two strings");
    }
    style.item_separator = pair->items[0].as_string();
    style.key_separator = pair->items[1].as_string();
  }
  style.sort_keys = FlagOf(args[3], false);
  LYNX_ASSIGN_OR_RETURN(Text text, ToJson(value, style));
  LYNX_RETURN_IF_ERROR(budget.Spend(static_cast<int64_t>(text.size())));
  return Value(std::move(text));
}

absl::StatusOr<Value> FilterLength(const Value& value, const Bound&, Budget&) {
  LYNX_ASSIGN_OR_RETURN(const size_t length, Length(value));
  return Value(static_cast<int64_t>(length));
}

absl::StatusOr<Value> FilterTrim(const Value& value, const Bound& args, Budget&) {
  LYNX_ASSIGN_OR_RETURN(const Text text, Str(value));
  return Strip(text, args[0], true, true);
}

absl::StatusOr<Value> FilterJoin(const Value& value, const Bound& args, Budget& budget) {
  Text separator;
  if (args[0].has_value()) {
    LYNX_ASSIGN_OR_RETURN(separator, Str(*args[0]));
  }
  LYNX_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(value));
  Text out;
  for (size_t i = 0; i < items.size(); ++i) {
    LYNX_ASSIGN_OR_RETURN(const Value item, Follow(items[i], args[1], budget));
    LYNX_ASSIGN_OR_RETURN(const Text text, Str(item));
    LYNX_RETURN_IF_ERROR(budget.Spend(static_cast<int64_t>(text.size() + separator.size())));
    if (i > 0) out.Append(separator);
    out.Append(text);
  }
  return Value(std::move(out));
}

absl::StatusOr<Value> FilterList(const Value& value, const Bound&, Budget& budget) {
  LYNX_ASSIGN_OR_RETURN(std::vector<Value> items, Iterate(value));
  LYNX_RETURN_IF_ERROR(budget.Spend(static_cast<int64_t>(items.size()) * 16));
  return MakeList(std::move(items));
}

absl::StatusOr<Value> FilterString(const Value& value, const Bound&, Budget&) {
  LYNX_ASSIGN_OR_RETURN(Text text, Str(value));
  return Value(std::move(text));
}

absl::StatusOr<Value> FilterInt(const Value& value, const Bound& args, Budget&) {
  const Value fallback = args[0].has_value() ? *args[0] : Value(int64_t{0});
  LYNX_ASSIGN_OR_RETURN(const int64_t base, IntOf(args[1], 10, "'base'"));
  if (base < 2 || base > 36) return Bad("'base' must be in 2..36");
  if (value.is_integral()) return Value(value.as_int());
  if (value.big_integer() != nullptr) return value;
  double number = 0;
  if (value.is_float()) {
    number = value.as_double();
    if (!std::isfinite(number)) return Bad("an infinite number, or none, is no integer");
  } else if (value.is_string()) {
    std::string_view text = StripSpace(value.as_string(), true, true);
    if (text.starts_with('+')) text.remove_prefix(1);
    int64_t integer = 0;
    const auto result =
        std::from_chars(text.data(), text.data() + text.size(), integer, static_cast<int>(base));
    const bool is_whole = result.ptr == text.data() + text.size();
    if (result.ec == std::errc() && is_whole) return Value(integer);
    if (result.ec == std::errc::result_out_of_range && is_whole) {
      if (base == 10) return MakeInteger(text);
      return Bad("an integer beyond 64 bits of base " + std::to_string(base) + " is not read");
    }
    if (!absl::SimpleAtod(absl::string_view(text.data(), text.size()), &number)) return fallback;
  } else {
    return fallback;
  }
  if (!std::isfinite(number)) return fallback;
  return MakeInteger(absl::StrFormat("%.0f", std::trunc(number)));
}

absl::StatusOr<Value> FilterFloat(const Value& value, const Bound& args, Budget&) {
  const Value fallback = args[0].has_value() ? *args[0] : Value(0.0);
  if (value.is_number()) return Value(value.as_double());
  double number = 0;
  if (const BigInteger* big = value.big_integer()) {
    number = std::strtod(big->digits.c_str(), nullptr);
    if (std::isinf(number)) return Bad("the integer is too large for a float");
    return Value(number);
  }
  if (value.is_string() && absl::SimpleAtod(value.as_string(), &number)) return Value(number);
  return fallback;
}

absl::StatusOr<Value> FilterUpper(const Value& value, const Bound&, Budget& budget) {
  LYNX_ASSIGN_OR_RETURN(const Text text, Str(value));
  LYNX_RETURN_IF_ERROR(budget.Spend(static_cast<int64_t>(text.size())));
  LYNX_ASSIGN_OR_RETURN(std::string out, MapCase(text.bytes(), true));
  return Value(Text::From(text, std::move(out)));
}

absl::StatusOr<Value> FilterLower(const Value& value, const Bound&, Budget& budget) {
  LYNX_ASSIGN_OR_RETURN(const Text text, Str(value));
  LYNX_RETURN_IF_ERROR(budget.Spend(static_cast<int64_t>(text.size())));
  LYNX_ASSIGN_OR_RETURN(std::string out, MapCase(text.bytes(), false));
  return Value(Text::From(text, std::move(out)));
}

absl::StatusOr<Value> FilterTitle(const Value& value, const Bound&, Budget&) {
  LYNX_ASSIGN_OR_RETURN(const Text text, Str(value));
  LYNX_ASSIGN_OR_RETURN(std::string out, TitleWords(text.bytes()));
  return Value(Text::From(text, std::move(out)));
}

absl::StatusOr<Value> FilterCapitalize(const Value& value, const Bound&, Budget&) {
  LYNX_ASSIGN_OR_RETURN(const Text text, Str(value));
  LYNX_ASSIGN_OR_RETURN(std::string out, Capitalize(text.bytes()));
  return Value(Text::From(text, std::move(out)));
}

absl::StatusOr<Value> FilterDefault(const Value& value, const Bound& args, Budget&) {
  const bool use = value.is_undefined() || (FlagOf(args[1], false) && !Truthy(value));
  if (!use) return value;
  return args[0].has_value() ? *args[0] : Value("");
}

absl::StatusOr<Value> FilterFirst(const Value& value, const Bound&, Budget&) {
  if (const List* list = value.list()) {
    const size_t at = list->is_iterator() ? list->taken : 0;
    if (at < list->items.size()) {
      if (list->is_iterator()) ++list->taken;
      return list->items[at];
    }
  }
  if (value.dict() != nullptr && !value.dict()->items.empty()) {
    return value.dict()->Key(value.dict()->items.front().first);
  }
  if (value.is_string() && Truthy(value)) {
    const std::string& text = value.as_string();
    return Value(value.as_text().Part(0, std::max<size_t>(1, Utf8SequenceLength(text))));
  }
  LYNX_RETURN_IF_ERROR(Iterate(value).status());
  return Value::MakeUndefined("the first item of an empty list");
}

absl::StatusOr<Value> FilterLast(const Value& value, const Bound&, Budget&) {
  if (value.list() != nullptr && value.list()->is_iterator()) {
    return Bad("an iterator has no last item that can be reached: it has no '| list'");
  }
  if (value.list() != nullptr && !value.list()->items.empty()) return value.list()->items.back();
  if (value.dict() != nullptr && !value.dict()->items.empty()) {
    return value.dict()->Key(value.dict()->items.back().first);
  }
  if (value.is_string() && Truthy(value)) {
    const std::string& text = value.as_string();
    size_t begin = text.size() - 1;
    while (begin > 0 && (text[begin] & 0xC0) == 0x80) --begin;
    return Value(value.as_text().Part(begin, text.size()));
  }
  LYNX_RETURN_IF_ERROR(Iterate(value).status());
  return Value::MakeUndefined("the last item of an empty list");
}

absl::StatusOr<Value> FilterReverse(const Value& value, const Bound&, Budget& budget) {
  LYNX_ASSIGN_OR_RETURN(std::vector<Value> items, Iterate(value));
  LYNX_RETURN_IF_ERROR(budget.Spend(static_cast<int64_t>(items.size()) * 16));
  std::reverse(items.begin(), items.end());
  if (!value.is_string()) {
    const bool was_iterator = value.list() != nullptr && value.list()->is_iterator();
    return MakeList(std::move(items), was_iterator ? List::Kind::kList : List::Kind::kIterator);
  }
  Text out;
  for (const Value& item : items) out.Append(item.as_text());
  return Value(std::move(out));
}

// Pairs of keys and values.
absl::StatusOr<Value> ItemsOf(const Dict& dict, List::Kind kind, Budget& budget) {
  LYNX_RETURN_IF_ERROR(budget.Spend(static_cast<int64_t>(dict.items.size()) * 32));
  std::vector<Value> pairs;
  for (const auto& [key, item] : dict.items) {
    LYNX_ASSIGN_OR_RETURN(Value pair, MakeList({dict.Key(key), item}, List::Kind::kTuple));
    pairs.push_back(std::move(pair));
  }
  return MakeList(std::move(pairs), kind);
}

absl::StatusOr<Value> FilterItems(const Value& value, const Bound&, Budget& budget) {
  if (value.is_undefined()) return MakeList({}, List::Kind::kIterator);
  if (value.dict() == nullptr) return Bad("items needs a mapping");
  return ItemsOf(*value.dict(), List::Kind::kIterator, budget);
}

absl::StatusOr<Value> FilterReplace(const Value& value, const Bound& args, Budget& budget) {
  LYNX_ASSIGN_OR_RETURN(const Text text, Str(value));
  if (!args[0].has_value() || !args[1].has_value()) return Bad("replace needs two arguments");
  LYNX_ASSIGN_OR_RETURN(const Text from, Str(*args[0]));
  LYNX_ASSIGN_OR_RETURN(const Text to, Str(*args[1]));
  const bool all = !args[2].has_value() || args[2]->is_none();
  LYNX_ASSIGN_OR_RETURN(const int64_t count, all ? -1 : IntOf(args[2], -1, "'count'"));
  return Replace(text, from.bytes(), to, count, budget);
}

// As Python has it: of the sign of the divisor.
double Remainder(double a, double b) {
  const double rest = std::fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

absl::StatusOr<Value> FilterAbs(const Value& value, const Bound&, Budget&) {
  if (value.is_integral() && value.as_int() > INT64_MIN) return Value(std::abs(value.as_int()));
  if (value.is_float()) return Value(std::abs(value.as_double()));
  if (const BigInteger* big = value.big_integer()) {
    return MakeInteger(std::string_view(big->digits).substr(big->digits[0] == '-' ? 1 : 0));
  }
  return Bad("abs needs a number");
}

// Python's round(): of the decimal value, halves to even, as printf and remainder() do it.
double RoundFloat(double number, int precision) {
  if (!std::isfinite(number)) return number;
  if (precision < 0) {
    return std::copysign(number - std::remainder(number, std::pow(10.0, -precision)), number);
  }
  std::array<char, 1024> buffer;
  const int length = std::snprintf(buffer.data(), buffer.size(), "%.*f", precision, number);
  double rounded = 0;
  std::from_chars(buffer.data(), buffer.data() + length, rounded);
  return rounded;
}

// The same of an integer, to a multiple of 10^-precision.
absl::StatusOr<Value> RoundInt(int64_t number, int64_t precision) {
  if (precision >= 0) return Value(number);
  if (precision < -18) return Value(int64_t{0});
  int64_t unit = 1;
  for (int64_t i = precision; i < 0; ++i) unit *= 10;
  const int64_t rest = ((number % unit) + unit) % unit;
  const int64_t quotient = number / unit - (number % unit < 0 ? 1 : 0);
  const bool up = rest > unit - rest || (rest == unit - rest && quotient % 2 != 0);
  int64_t rounded = 0;
  if (__builtin_mul_overflow(quotient + (up ? 1 : 0), unit, &rounded)) {
    return Bad("a number is too large");
  }
  return Value(rounded);
}

absl::StatusOr<Value> FilterRound(const Value& value, const Bound& args, Budget&) {
  constexpr int64_t kMaxPrecision = 300;
  if (!value.is_number()) return Bad("round needs a number");
  LYNX_ASSIGN_OR_RETURN(const int64_t precision, IntOf(args[0], 0, "'precision'"));
  if (precision < -kMaxPrecision || precision > kMaxPrecision) {
    return Bad(absl::StrCat("'precision' must be in -", kMaxPrecision, "..", kMaxPrecision));
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double number = value.as_double();
  std::string method = "common";
  if (args[1].has_value()) {
    LYNX_ASSIGN_OR_RETURN(method, StringOf(args[1], "'method'"));
  }
  if (method == "ceil") return Value(std::ceil(number * scale) / scale);
  if (method == "floor") return Value(std::floor(number * scale) / scale);
  if (method != "common") return Bad("unknown rounding method '" + method + "'");
  if (value.is_integral()) return RoundInt(value.as_int(), precision);
  return Value(RoundFloat(number, static_cast<int>(precision)));
}

absl::StatusOr<Value> FilterSafe(const Value& value, const Bound&, Budget&) { return value; }

absl::StatusOr<Value> FilterEscape(const Value& value, const Bound&, Budget& budget) {
  LYNX_ASSIGN_OR_RETURN(const Text text, Str(value));
  std::string out;
  for (const char c : text.bytes()) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
  LYNX_RETURN_IF_ERROR(budget.Spend(static_cast<int64_t>(out.size())));
  return Value(Text::From(text, std::move(out)));
}

absl::StatusOr<Value> FilterSort(const Value& value, const Bound& args, Budget& budget) {
  LYNX_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(value));
  LYNX_ASSIGN_OR_RETURN(std::vector<Value> sorted, Sorted(items, args[2], FlagOf(args[1], false),
                                                          FlagOf(args[0], false), budget));
  return MakeList(std::move(sorted));
}

absl::StatusOr<Value> FilterUnique(const Value& value, const Bound& args, Budget& budget) {
  LYNX_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(value));
  std::set<std::string> seen;
  std::vector<Value> kept;
  for (const Value& item : items) {
    LYNX_ASSIGN_OR_RETURN(const Value raw, Follow(item, args[1], budget));
    LYNX_ASSIGN_OR_RETURN(const Value key, Folded(raw, FlagOf(args[0], false)));
    LYNX_RETURN_IF_ERROR(budget.Spend(4 * kItemCost + CappedWeight(key)));
    LYNX_ASSIGN_OR_RETURN(std::string name, KeyName(key));
    if (seen.insert(std::move(name)).second) kept.push_back(item);
  }
  return MakeList(std::move(kept), List::Kind::kIterator);
}

absl::StatusOr<Value> FilterDictSort(const Value& value, const Bound& args, Budget& budget) {
  if (value.is_undefined()) return value.UndefinedError();
  if (value.dict() == nullptr) return Bad("dictsort needs a mapping");
  LYNX_ASSIGN_OR_RETURN(const Value pairs, ItemsOf(*value.dict(), List::Kind::kList, budget));
  const bool by_value = args[1].has_value() && Equal(*args[1], Value("value"));
  if (args[1].has_value() && !by_value && !Equal(*args[1], Value("key"))) {
    return Bad("dictsort sorts by 'key' or 'value'");
  }
  LYNX_ASSIGN_OR_RETURN(std::vector<Value> sorted,
                        Sorted(pairs.list()->items, Value(int64_t{by_value ? 1 : 0}),
                               FlagOf(args[0], false), FlagOf(args[2], false), budget));
  return MakeList(std::move(sorted));
}

absl::StatusOr<Value> FilterIndent(const Value& value, const Bound& args, Budget& budget) {
  if (value.is_undefined()) return value.UndefinedError();
  LYNX_ASSIGN_OR_RETURN(Text text, TextOf(value, "what to indent"));
  Text indent(std::string(4, ' '));
  if (args[0].has_value() && args[0]->is_string()) {
    indent = args[0]->as_text();
  } else {
    LYNX_ASSIGN_OR_RETURN(const int64_t width, IntOf(args[0], 4, "'width'"));
    if (width < 0 || width > 1024) return Bad("'width' must be in 0..1024");
    indent = Text(std::string(static_cast<size_t>(width), ' '));
  }
  const bool blank = FlagOf(args[2], false);
  text.Append("\n");
  const std::vector<std::string_view> lines = SplitLines(text.bytes());
  Text out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.Append("\n");
    const bool wanted = i == 0 ? FlagOf(args[1], false) : blank || !lines[i].empty();
    if (wanted) out.Append(indent);
    out.Append(text.Part(lines[i]));
    LYNX_RETURN_IF_ERROR(budget.Spend(static_cast<int64_t>(indent.size() + lines[i].size() + 1)));
  }
  return Value(std::move(out));
}

absl::StatusOr<Value> FilterSum(const Value& value, const Bound& args, Budget& budget) {
  LYNX_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(value));
  bool is_float = false;
  double number = 0;
  int64_t integer = 0;
  const auto add = [&](const Value& item) -> absl::Status {
    if (!item.is_number()) return Bad("sum needs numbers");
    is_float = is_float || item.is_float();
    number += item.as_double();
    if (item.is_integral() && __builtin_add_overflow(integer, item.as_int(), &integer)) {
      return Bad("a sum is too large");
    }
    return absl::OkStatus();
  };
  if (args[1].has_value()) LYNX_RETURN_IF_ERROR(add(*args[1]));
  for (const Value& item : items) {
    LYNX_ASSIGN_OR_RETURN(const Value part, Follow(item, args[0], budget));
    LYNX_RETURN_IF_ERROR(add(part));
  }
  return is_float ? Value(number) : Value(integer);
}

absl::StatusOr<Value> FilterBatch(const Value& value, const Bound& args, Budget& budget) {
  LYNX_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(value));
  LYNX_ASSIGN_OR_RETURN(const int64_t size, IntOf(args[0], 0, "'linecount'"));
  if (size < 1) return Bad("'linecount' must be positive");
  const bool fills = args[1].has_value() && !args[1]->is_none();
  std::vector<Value> batches;
  for (size_t at = 0; at < items.size();) {
    std::vector<Value> batch;
    for (; at < items.size() && static_cast<int64_t>(batch.size()) < size; ++at) {
      batch.push_back(items[at]);
    }
    while (fills && static_cast<int64_t>(batch.size()) < size) {
      LYNX_RETURN_IF_ERROR(budget.Spend(4 * kItemCost));
      batch.push_back(*args[1]);
    }
    LYNX_ASSIGN_OR_RETURN(Value list, MakeList(std::move(batch)));
    batches.push_back(std::move(list));
  }
  return MakeList(std::move(batches), List::Kind::kIterator);
}

absl::StatusOr<Value> FilterSlice(const Value& value, const Bound& args, Budget& budget) {
  LYNX_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(value));
  LYNX_ASSIGN_OR_RETURN(const int64_t count, IntOf(args[0], 0, "'slices'"));
  if (count < 1) return Bad("'slices' must be positive");
  const bool fills = args[1].has_value() && !args[1]->is_none();
  const auto total = static_cast<int64_t>(items.size());
  std::vector<Value> slices;
  size_t at = 0;
  for (int64_t i = 0; i < count; ++i) {
    LYNX_RETURN_IF_ERROR(budget.Spend(4 * kItemCost));
    const bool is_longer = i < total % count;
    std::vector<Value> slice;
    for (int64_t left = total / count + (is_longer ? 1 : 0); left > 0; --left) {
      slice.push_back(items[at++]);
    }
    if (fills && !is_longer) slice.push_back(*args[1]);
    LYNX_ASSIGN_OR_RETURN(Value list, MakeList(std::move(slice)));
    slices.push_back(std::move(list));
  }
  return MakeList(std::move(slices), List::Kind::kIterator);
}

absl::StatusOr<Value> FilterTruncate(const Value& value, const Bound& args, Budget&) {
  if (value.is_undefined()) return value;
  LYNX_ASSIGN_OR_RETURN(const Text text, TextOf(value, "what to truncate"));
  LYNX_ASSIGN_OR_RETURN(const int64_t length, IntOf(args[0], 255, "'length'"));
  Text end("...");
  if (args[2].has_value()) {
    LYNX_ASSIGN_OR_RETURN(end, TextOf(args[2], "'end'"));
  }
  LYNX_ASSIGN_OR_RETURN(const int64_t leeway, IntOf(args[3], 5, "'leeway'"));
  const std::vector<std::string_view> all = CodePoints(text.bytes());
  const auto end_length = static_cast<int64_t>(CodePointCount(end.bytes()));
  if (length < end_length || leeway < 0 || length > INT32_MAX || leeway > INT32_MAX) {
    return Bad("truncate cannot cut to this length");
  }
  if (static_cast<int64_t>(all.size()) <= length + leeway) return Value(text);
  size_t cut = 0;
  for (int64_t i = 0; i < length - end_length; ++i) cut += all[static_cast<size_t>(i)].size();
  if (!FlagOf(args[1], false)) {
    const size_t space = text.bytes().substr(0, cut).rfind(' ');
    if (space != std::string::npos) cut = space;
  }
  Text out = text.Part(0, cut);
  out.Append(end);
  return Value(std::move(out));
}

absl::StatusOr<Value> FilterWordCount(const Value& value, const Bound&, Budget&) {
  LYNX_ASSIGN_OR_RETURN(const Text text, Str(value));
  int64_t words = 0;
  bool inside = false;
  for (const std::string_view character : CodePoints(text.bytes())) {
    const bool is_word =
        character == "_" || AllOf(std::string(character), [](UChar32 c) {
          return u_isalpha(c) || u_getIntPropertyValue(c, UCHAR_NUMERIC_TYPE) != U_NT_NONE;
        });
    if (is_word && !inside) ++words;
    inside = is_word;
  }
  return Value(words);
}

absl::StatusOr<Value> FilterCenter(const Value& value, const Bound& args, Budget& budget) {
  LYNX_ASSIGN_OR_RETURN(const Text text, Str(value));
  LYNX_ASSIGN_OR_RETURN(const int64_t width, IntOf(args[0], 80, "'width'"));
  LYNX_ASSIGN_OR_RETURN(Text out, Pad(text, width, " ", 0, budget));
  return Value(std::move(out));
}

// Takes any arguments, so it is not in the table of filters.
absl::StatusOr<Value> FilterFormat(const Value& value, const Arguments& args, Budget& budget) {
  if (!args.positional.empty() && !args.named.empty()) {
    return Bad("format takes values by place or by name, not both");
  }
  LYNX_ASSIGN_OR_RETURN(const Text format, Str(value));
  Dict named;
  for (const auto& [key, argument] : args.named) named.Set(key, argument);
  LYNX_ASSIGN_OR_RETURN(const Value values, args.named.empty()
                                                ? MakeList(args.positional, List::Kind::kTuple)
                                                : MakeDict(std::move(named)));
  LYNX_ASSIGN_OR_RETURN(Text out, FormatPercent(format, values, budget));
  return Value(std::move(out));
}

absl::StatusOr<Value> FilterMin(const Value& value, const Bound& args, Budget& budget) {
  return Extreme(value, args, false, budget);
}
absl::StatusOr<Value> FilterMax(const Value& value, const Bound& args, Budget& budget) {
  return Extreme(value, args, true, budget);
}

absl::StatusOr<Value> FilterAttr(const Value& value, const Bound& args, Budget&) {
  LYNX_ASSIGN_OR_RETURN(const std::string name, StringOf(args[0], "the name"));
  if (value.dict() != nullptr) return Value::MakeUndefined("attribute '" + name + "'");
  return GetAttribute(value, name);
}

template <typename Names>
bool IsIn(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

struct FilterEntry {
  std::string_view name;
  FilterFunction function;
  Params params;
};

const std::vector<FilterEntry>& Filters() {
  static const auto* filters = new std::vector<FilterEntry>{
      {"tojson", FilterToJson, {"ensure_ascii", "indent", "separators", "sort_keys"}},
      {"length", FilterLength, {}},
      {"count", FilterLength, {}},
      {"trim", FilterTrim, {"chars"}},
      {"join", FilterJoin, {"d", "attribute"}},
      {"list", FilterList, {}},
      {"string", FilterString, {}},
      {"int", FilterInt, {"default", "base"}},
      {"float", FilterFloat, {"default"}},
      {"upper", FilterUpper, {}},
      {"lower", FilterLower, {}},
      {"title", FilterTitle, {}},
      {"capitalize", FilterCapitalize, {}},
      {"default", FilterDefault, {"default_value", "boolean"}},
      {"d", FilterDefault, {"default_value", "boolean"}},
      {"first", FilterFirst, {}},
      {"last", FilterLast, {}},
      {"reverse", FilterReverse, {}},
      {"items", FilterItems, {}},
      {"replace", FilterReplace, {"old", "new", "count"}},
      {"abs", FilterAbs, {}},
      {"round", FilterRound, {"precision", "method"}},
      {"safe", FilterSafe, {}},
      {"escape", FilterEscape, {}},
      {"e", FilterEscape, {}},
      {"sort", FilterSort, {"reverse", "case_sensitive", "attribute"}},
      {"unique", FilterUnique, {"case_sensitive", "attribute"}},
      {"dictsort", FilterDictSort, {"case_sensitive", "by", "reverse"}},
      {"indent", FilterIndent, {"width", "first", "blank"}},
      {"sum", FilterSum, {"attribute", "start"}},
      {"min", FilterMin, {"case_sensitive", "attribute"}},
      {"max", FilterMax, {"case_sensitive", "attribute"}},
      {"attr", FilterAttr, {"name"}},
      {"batch", FilterBatch, {"linecount", "fill_with"}},
      {"slice", FilterSlice, {"slices", "fill_with"}},
      {"truncate", FilterTruncate, {"length", "killwords", "end", "leeway"}},
      {"wordcount", FilterWordCount, {}},
      {"center", FilterCenter, {"width"}},
  };
  return *filters;
}

const FilterEntry* FindFilter(std::string_view name) {
  for (const FilterEntry& entry : Filters()) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

// These do not look into their subject.
constexpr std::array<std::string_view, 9> kConstantFilters = {
    "default", "d", "first", "last", "safe", "attr", "abs", "round", "items"};
// And these go through all of it.
constexpr std::array<std::string_view, 6> kDeepFilters = {"tojson", "string", "join",
                                                          "unique", "sort",   "dictsort"};

constexpr std::array<std::string_view, 5> kItemFilters = {"map", "select", "reject", "selectattr",
                                                          "rejectattr"};

int64_t FilterCost(std::string_view name, const Value& value) {
  if (IsIn(kConstantFilters, name)) return 0;
  const bool counts = name == "length" || name == "count";
  if (value.is_string()) return counts ? value.weight() / 8 : value.weight() * kCodePointCost;
  if (IsIn(kDeepFilters, name)) return value.weight();
  if (counts) return 0;
  const size_t items = value.list() != nullptr   ? value.list()->items.size()
                       : value.dict() != nullptr ? value.dict()->items.size()
                                                 : 0;
  // The others either go through a list once, or print what is no string.
  const bool prints = !IsIn(kItemFilters, name) && name != "list" && name != "reverse" &&
                      name != "sum" && name != "min" && name != "max";
  return prints ? value.weight() : static_cast<int64_t>(items) * kItemCost;
}

// map, select, reject, selectattr, rejectattr: they apply another filter or test to each item.
absl::StatusOr<Value> ApplyItemFilter(std::string_view name, const Value& value,
                                      const Arguments& args, Budget& budget) {
  // None, like an empty list, gives nothing.
  if (!Truthy(value)) return MakeList({}, List::Kind::kIterator);
  LYNX_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(value));
  LYNX_RETURN_IF_ERROR(budget.Spend(static_cast<int64_t>(items.size()) * 16));
  std::vector<Value> out;
  if (name == "map") {
    std::optional<Value> attribute;
    std::optional<Value> fallback;
    for (const auto& [key, argument] : args.named)
      (key == "attribute" ? attribute : fallback) = argument;
    if (!attribute.has_value() && args.positional.empty()) return Bad("map needs a filter");
    for (const Value& item : items) {
      Value mapped;
      if (attribute.has_value()) {
        LYNX_ASSIGN_OR_RETURN(mapped, Follow(item, attribute, budget));
        if (mapped.is_undefined() && fallback.has_value()) mapped = *fallback;
      } else {
        const Arguments rest{{args.positional.begin() + 1, args.positional.end()}, {}};
        LYNX_ASSIGN_OR_RETURN(mapped,
                              ApplyFilter(args.positional[0].as_string(), item, rest, budget));
      }
      out.push_back(std::move(mapped));
    }
    return MakeList(std::move(out), List::Kind::kIterator);
  }
  const bool by_attribute = name.ends_with("attr");
  const bool wanted = name.starts_with("select");
  const size_t test_at = by_attribute ? 1 : 0;
  if (by_attribute && args.positional.empty()) return Bad("an attribute name is needed");
  for (const Value& item : items) {
    Value subject = item;
    if (by_attribute) {
      LYNX_ASSIGN_OR_RETURN(subject, Follow(item, args.positional[0], budget));
    }
    bool holds = false;
    if (args.positional.size() > test_at) {
      const auto first = args.positional.begin() + static_cast<std::ptrdiff_t>(test_at);
      LYNX_ASSIGN_OR_RETURN(holds, ApplyTest(first->as_string(), subject,
                                             {{first + 1, args.positional.end()}, {}}, budget));
    } else {
      holds = Truthy(subject);
    }
    if (holds == wanted) out.push_back(item);
  }
  return MakeList(std::move(out), List::Kind::kIterator);
}

constexpr std::array<std::string_view, 39> kTests = {
    "filter",      "test",        "defined", "undefined", "none",     "string",   "number",
    "integer",     "float",       "boolean", "mapping",   "iterable", "sequence", "true",
    "false",       "callable",    "equalto", "eq",        "ne",       "lt",       "lessthan",
    "gt",          "greaterthan", "ge",      "le",        "in",       "even",     "odd",
    "divisibleby", "lower",       "upper",   "sameas",    "==",       "!=",       "<",
    "<=",          ">",           ">=",      "escaped"};

constexpr std::array<std::string_view, 18> kTestsWithArgument = {
    "equalto", "eq",          "ne",     "lt", "lessthan", "gt", "greaterthan", "ge", "le",
    "in",      "divisibleby", "sameas", "==", "!=",       "<",  "<=",          ">",  ">="};

constexpr std::array<std::string_view, 5> kFunctions = {"range", "dict", "namespace",
                                                        "raise_exception", "strftime_now"};

constexpr std::array<std::string_view, 34> kStringMethods = {
    "index",   "rindex",  "partition",    "rpartition",  "zfill",   "center",
    "ljust",   "rjust",   "swapcase",     "split",       "rsplit",  "strip",
    "lstrip",  "rstrip",  "startswith",   "endswith",    "replace", "upper",
    "lower",   "title",   "capitalize",   "find",        "rfind",   "count",
    "join",    "isdigit", "isalpha",      "isalnum",     "isspace", "splitlines",
    "islower", "isupper", "removeprefix", "removesuffix"};
constexpr std::array<std::string_view, 4> kDictMethods = {"items", "keys", "values", "get"};
constexpr std::array<std::string_view, 2> kListMethods = {"index", "count"};
constexpr std::array<std::string_view, 2> kLoopMethods = {"cycle", "changed"};

int64_t StringMethodCost(const std::string& name, const std::string& text) {
  const auto size = static_cast<int64_t>(text.size());
  if (name == "startswith" || name == "endswith") return kItemCost;
  if (name.ends_with("find") || name.ends_with("index") || name == "count" || name == "replace") {
    return size;
  }
  return size * kCodePointCost;
}

absl::StatusOr<Value> Partition(const Text& text, const std::string& name, const Arguments& args,
                                Budget&) {
  LYNX_ASSIGN_OR_RETURN(const Bound bound, Bind(name, {"sep"}, args));
  LYNX_ASSIGN_OR_RETURN(const Text mark, TextOf(bound[0], "the separator"));
  if (mark.size() == 0) return Bad("the separator is empty");
  const bool from_right = name == "rpartition";
  const std::string& bytes = text.bytes();
  const size_t at = from_right ? bytes.rfind(mark.bytes()) : bytes.find(mark.bytes());
  if (at == std::string::npos) {
    if (from_right) return MakeList({Value(""), Value(""), Value(text)}, List::Kind::kTuple);
    return MakeList({Value(text), Value(""), Value("")}, List::Kind::kTuple);
  }
  return MakeList(
      {Value(text.Part(0, at)), Value(mark), Value(text.Part(at + mark.size(), bytes.size()))},
      List::Kind::kTuple);
}

absl::StatusOr<Value> Fill(const Text& text, const std::string& name, const Arguments& args,
                           Budget& budget) {
  const bool is_zfill = name == "zfill";
  LYNX_ASSIGN_OR_RETURN(const Bound bound,
                        Bind(name, is_zfill ? Params{"width"} : Params{"width", "fill"}, args));
  if (!bound[0].has_value()) return Bad(name + "() needs a width");
  LYNX_ASSIGN_OR_RETURN(const int64_t width, IntOf(bound[0], 0, "the width"));
  std::string fill = is_zfill ? "0" : " ";
  if (!is_zfill && bound[1].has_value()) {
    LYNX_ASSIGN_OR_RETURN(fill, StringOf(bound[1], "what to fill with"));
    if (CodePointCount(fill) != 1) return Bad("what to fill with must be one character");
  }
  const int side = name == "center" ? 0 : name == "ljust" ? -1 : 1;
  // Zeros go behind a sign.
  const bool has_sign =
      is_zfill && (text.bytes().starts_with('-') || text.bytes().starts_with('+'));
  Text out = text.Part(0, has_sign ? 1 : 0);
  LYNX_ASSIGN_OR_RETURN(const Text padded,
                        Pad(text.Part(has_sign ? 1 : 0, text.size()),
                            has_sign && width > 0 ? width - 1 : width, fill, side, budget));
  out.Append(padded);
  return Value(std::move(out));
}

absl::StatusOr<std::string> SwapCase(const std::string& text) {
  std::string out;
  for (const std::string_view character : CodePoints(text)) {
    const UChar32 c = CodePointOf(character);
    if (!u_isULowercase(c) && !u_isUUppercase(c)) {
      out += character;
      continue;
    }
    LYNX_ASSIGN_OR_RETURN(const std::string mapped,
                          MapCase(std::string(character), u_isULowercase(c)));
    out += mapped;
  }
  return out;
}

// find, rfind, index, rindex, count.
absl::StatusOr<Value> Search(const std::string& text, const std::string& name,
                             const Arguments& args, Budget& budget) {
  LYNX_ASSIGN_OR_RETURN(const Bound bound, Bind(name, {"sub", "start", "end"}, args));
  LYNX_ASSIGN_OR_RETURN(const std::string part, StringOf(bound[0], "what to look for"));
  LYNX_ASSIGN_OR_RETURN(const auto window, WindowOf(text, bound[1], bound[2], budget));
  const std::string_view searched = window.value_or(Window()).text;
  if (name == "count") {
    if (!window.has_value()) return Value(int64_t{0});
    if (part.empty()) return Value(static_cast<int64_t>(CodePointCount(searched)) + 1);
    int64_t count = 0;
    for (size_t at = 0; (at = searched.find(part, at)) != std::string_view::npos;
         at += part.size()) {
      ++count;
    }
    return Value(count);
  }
  const size_t at = !window.has_value()     ? std::string_view::npos
                    : name.starts_with('r') ? searched.rfind(part)
                                            : searched.find(part);
  if (at != std::string_view::npos) {
    return Value(window->start + static_cast<int64_t>(CodePointCount(searched.substr(0, at))));
  }
  if (name.ends_with("index")) return Bad(name + "() did not find the text");
  return Value(int64_t{-1});
}

absl::StatusOr<Value> CallStringMethod(const Text& self, const std::string& name,
                                       const Arguments& args, Budget& budget) {
  const std::string& text = self.bytes();
  LYNX_RETURN_IF_ERROR(budget.Spend(StringMethodCost(name, text)));
  const auto bind = [&](const Params& params) { return Bind(name, params, args); };
  if (name == "split" || name == "rsplit") {
    LYNX_ASSIGN_OR_RETURN(const Bound bound, bind({"sep", "maxsplit"}));
    LYNX_ASSIGN_OR_RETURN(const int64_t limit, IntOf(bound[1], -1, "'maxsplit'"));
    return Split(self, bound[0], limit, name == "rsplit", budget);
  }
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    LYNX_ASSIGN_OR_RETURN(const Bound bound, bind({"chars"}));
    return Strip(self, bound[0], name != "rstrip", name != "lstrip");
  }
  if (name == "startswith" || name == "endswith") {
    LYNX_ASSIGN_OR_RETURN(const Bound bound, bind({"affix", "start", "end"}));
    LYNX_ASSIGN_OR_RETURN(const auto window, WindowOf(text, bound[1], bound[2], budget));
    LYNX_ASSIGN_OR_RETURN(const bool has,
                          HasAffix(window.value_or(Window()).text, bound[0], name == "endswith"));
    return Value(has && window.has_value());
  }
  if (name == "removeprefix" || name == "removesuffix") {
    LYNX_ASSIGN_OR_RETURN(const Bound bound, bind({"affix"}));
    LYNX_ASSIGN_OR_RETURN(const std::string affix, StringOf(bound[0], "what to remove"));
    if (name == "removeprefix" && text.starts_with(affix)) {
      return Value(self.Part(affix.size(), text.size()));
    }
    if (name == "removesuffix" && text.ends_with(affix)) {
      return Value(self.Part(0, text.size() - affix.size()));
    }
    return Value(self);
  }
  if (name == "partition" || name == "rpartition") return Partition(self, name, args, budget);
  if (name == "zfill" || name == "center" || name == "ljust" || name == "rjust") {
    return Fill(self, name, args, budget);
  }
  if (name == "replace") {
    LYNX_ASSIGN_OR_RETURN(const Bound bound, bind({"old", "new", "count"}));
    LYNX_ASSIGN_OR_RETURN(const std::string from, StringOf(bound[0], "what to replace"));
    LYNX_ASSIGN_OR_RETURN(const Text to, TextOf(bound[1], "the replacement"));
    LYNX_ASSIGN_OR_RETURN(const int64_t count, IntOf(bound[2], -1, "'count'"));
    return Replace(self, from, to, count, budget);
  }
  if (name == "count" || name.ends_with("find") || name.ends_with("index")) {
    return Search(text, name, args, budget);
  }
  if (name == "join") {
    LYNX_ASSIGN_OR_RETURN(const Bound bound, bind({"items"}));
    LYNX_ASSIGN_OR_RETURN(const std::vector<Value> items,
                          Iterate(bound[0].has_value() ? *bound[0] : Value(None{})));
    Text out;
    for (size_t i = 0; i < items.size(); ++i) {
      if (!items[i].is_string()) return Bad("join needs strings");
      if (i > 0) out.Append(self);
      out.Append(items[i].as_text());
      LYNX_RETURN_IF_ERROR(
          budget.Spend(static_cast<int64_t>(text.size() + items[i].as_string().size())));
    }
    return Value(std::move(out));
  }
  if (name == "splitlines") {
    LYNX_ASSIGN_OR_RETURN(const Bound bound, bind({"keepends"}));
    return ListOfParts(self, SplitLines(text, FlagOf(bound[0], false)), budget);
  }
  LYNX_RETURN_IF_ERROR(bind({}).status());
  if (name == "upper" || name == "lower") {
    LYNX_ASSIGN_OR_RETURN(std::string out, MapCase(text, name == "upper"));
    return Value(Text::From(self, std::move(out)));
  }
  if (name == "title") {
    LYNX_ASSIGN_OR_RETURN(std::string out, Title(text));
    return Value(Text::From(self, std::move(out)));
  }
  if (name == "swapcase") {
    LYNX_ASSIGN_OR_RETURN(std::string out, SwapCase(text));
    return Value(Text::From(self, std::move(out)));
  }
  if (name == "capitalize") {
    LYNX_ASSIGN_OR_RETURN(std::string out, Capitalize(text));
    return Value(Text::From(self, std::move(out)));
  }
  if (name == "isdigit") {
    return Value(AllOf(text, [](UChar32 c) {
      const int type = u_getIntPropertyValue(c, UCHAR_NUMERIC_TYPE);
      return type == U_NT_DECIMAL || type == U_NT_DIGIT;
    }));
  }
  if (name == "isalpha") return Value(AllOf(text, [](UChar32 c) { return u_isalpha(c) != 0; }));
  if (name == "isalnum") {
    return Value(AllOf(text, [](UChar32 c) {
      return u_isalpha(c) || u_getIntPropertyValue(c, UCHAR_NUMERIC_TYPE) != U_NT_NONE;
    }));
  }
  if (name == "isspace") {
    return Value(!text.empty() && StripSpace(text, true, false).empty());
  }
  return Value(HasOnlyCase(text, name == "isupper"));
}

absl::StatusOr<Value> CallDictMethod(const Value& self, const std::string& name,
                                     const Arguments& args, Budget& budget) {
  const Dict& dict = *self.dict();
  if (name == "get") {
    LYNX_ASSIGN_OR_RETURN(const Bound bound, Bind(name, {"key", "default"}, args));
    if (!bound[0].has_value()) return Bad("get() needs a key");
    LYNX_RETURN_IF_ERROR(budget.Spend(bound[0]->is_string() ? 0 : bound[0]->weight()));
    LYNX_ASSIGN_OR_RETURN(const Value* found, dict.FindKey(*bound[0]));
    if (found != nullptr) return *found;
    return bound[1].has_value() ? *bound[1] : Value(None{});
  }
  LYNX_RETURN_IF_ERROR(Bind(name, {}, args).status());
  if (name == "items") return ItemsOf(dict, List::Kind::kItems, budget);
  LYNX_RETURN_IF_ERROR(budget.Spend(static_cast<int64_t>(dict.items.size()) * 16));
  std::vector<Value> out;
  for (const auto& [key, value] : dict.items) {
    out.push_back(name == "keys" ? dict.Key(key) : value);
  }
  return MakeList(std::move(out), name == "keys" ? List::Kind::kKeys : List::Kind::kValues);
}

}  // namespace

bool IsKnownFilter(std::string_view name) {
  return FindFilter(name) != nullptr || IsIn(kItemFilters, name) || name == "format";
}
bool IsKnownTest(std::string_view name) { return IsIn(kTests, name); }
bool IsKnownFunction(std::string_view name) { return IsIn(kFunctions, name); }
bool IsKnownMethod(std::string_view name) {
  return IsIn(kStringMethods, name) || IsIn(kDictMethods, name) || IsIn(kListMethods, name) ||
         IsIn(kLoopMethods, name);
}

bool FilterTakesNamed(std::string_view filter, std::string_view argument) {
  if (filter == "map") return argument == "attribute" || argument == "default";
  if (filter == "format") return true;
  const FilterEntry* entry = FindFilter(filter);
  return entry != nullptr && IsIn(entry->params, argument);
}

absl::Status SpendCompare(const Value& a, const Value& b, Budget& budget) {
  // Strings are compared and searched fast; what holds more is gone through item by item.
  const auto cost = [](const Value& value) {
    return value.is_string() ? value.weight() / 8 : value.weight();
  };
  // What is searched in a dict is spelt out.
  const int64_t search = b.is_string() ? cost(b) : b.dict() != nullptr ? cost(a) : 0;
  return budget.Spend(std::min(cost(a), cost(b)) + search);
}

absl::StatusOr<Value> ApplyFilter(std::string_view name, const Value& value, const Arguments& args,
                                  Budget& budget) {
  LYNX_RETURN_IF_ERROR(budget.Spend(FilterCost(name, value)));
  if (IsIn(kItemFilters, name)) return ApplyItemFilter(name, value, args, budget);
  if (name == "format") return FilterFormat(value, args, budget);
  const FilterEntry* entry = FindFilter(name);
  if (entry == nullptr) return Bad(absl::StrCat("unknown filter '", std::string(name), "'"));
  LYNX_ASSIGN_OR_RETURN(const Bound bound, Bind(name, entry->params, args));
  return entry->function(value, bound, budget);
}

absl::StatusOr<bool> ApplyTest(std::string_view name, const Value& value, const Arguments& args,
                               Budget& budget) {
  const auto argument = [&]() -> absl::StatusOr<Value> {
    if (args.positional.size() != 1) {
      return Bad(absl::StrCat("test '", std::string(name), "' needs one argument"));
    }
    return args.positional[0];
  };
  if (!IsIn(kTestsWithArgument, name) && !args.positional.empty()) {
    return Bad(absl::StrCat("test '", std::string(name), "' takes no argument"));
  }
  if (name == "defined") return !value.is_undefined();
  if (name == "undefined") return value.is_undefined();
  if (name == "none") return value.is_none();
  if (name == "string") return value.is_string();
  if (name == "number") return value.is_number() || value.big_integer() != nullptr;
  if (name == "integer") return value.is_int() || value.big_integer() != nullptr;
  if (name == "float") return value.is_float();
  if (name == "boolean") return value.is_bool();
  if (name == "true") return value.is_bool() && value.as_bool();
  if (name == "false") return value.is_bool() && !value.as_bool();
  if (name == "mapping") return value.dict() != nullptr;
  if (name == "iterable" || name == "sequence") {
    const bool loop = value.loop() != nullptr && name == "iterable";
    const bool list =
        value.list() != nullptr && (name == "iterable" || value.list()->has_indices());
    return value.is_string() || list || value.dict() != nullptr || value.is_undefined() || loop;
  }
  if (name == "callable") return value.callable() != nullptr || value.is_undefined();
  if (name == "escaped") return false;
  if (name == "filter") return value.is_string() && IsKnownFilter(value.as_string());
  if (name == "test") return value.is_string() && IsKnownTest(value.as_string());
  if (name == "lower" || name == "upper") {
    LYNX_RETURN_IF_ERROR(budget.Spend(value.weight() * kCodePointCost));
    LYNX_ASSIGN_OR_RETURN(const Text text, Str(value));
    return HasOnlyCase(text.bytes(), name == "upper");
  }
  if (name == "even" || name == "odd") {
    if (!value.is_number()) return Bad("even and odd need a number");
    if (value.is_integral()) return (value.as_int() % 2 != 0) == (name == "odd");
    return Remainder(value.as_double(), 2) == (name == "odd" ? 1 : 0);
  }
  LYNX_ASSIGN_OR_RETURN(const Value other, argument());
  if (name == "divisibleby") {
    if (!value.is_number() || !other.is_number() || other.as_double() == 0) {
      return Bad("divisibleby needs numbers, and no zero");
    }
    if (value.is_float() || other.is_float()) {
      return Remainder(value.as_double(), other.as_double()) == 0;
    }
    return other.as_int() == -1 || value.as_int() % other.as_int() == 0;
  }
  LYNX_RETURN_IF_ERROR(SpendCompare(value, other, budget));
  if (name == "in") return Contains(other, value);
  if (name == "equalto" || name == "eq" || name == "==") return Equal(value, other);
  if (name == "ne" || name == "!=") return !Equal(value, other);
  if (name == "sameas") {
    return Equal(value, other) && std::string_view(value.TypeName()) == other.TypeName();
  }
  LYNX_ASSIGN_OR_RETURN(const int order, Compare(value, other));
  if (name == "lt" || name == "lessthan" || name == "<") return order < 0;
  if (name == "le" || name == "<=") return order <= 0;
  if (name == "gt" || name == "greaterthan" || name == ">") return order > 0;
  return order >= 0;
}

absl::StatusOr<Value> CallMethod(const Value& self, const std::string& name, const Arguments& args,
                                 Budget& budget) {
  if (self.is_string()) return CallStringMethod(self.as_text(), name, args, budget);
  if (self.dict() != nullptr) return CallDictMethod(self, name, args, budget);
  if (const List* list = self.list()) {
    LYNX_ASSIGN_OR_RETURN(const Bound bound, Bind(name, {"value"}, args));
    if (!bound[0].has_value()) return Bad(name + "() needs an argument");
    LYNX_RETURN_IF_ERROR(budget.Spend(self.weight()));
    int64_t count = 0;
    for (size_t i = 0; i < list->items.size(); ++i) {
      if (!Equal(list->items[i], *bound[0])) continue;
      if (name == "index") return Value(static_cast<int64_t>(i));
      ++count;
    }
    if (name == "index") return Bad("index() did not find the value");
    return Value(count);
  }
  if (Loop* loop = self.loop()) {
    if (!args.named.empty() || args.positional.empty()) return Bad(name + "() needs arguments");
    if (name == "cycle") return args.positional[loop->index % args.positional.size()];
    LYNX_ASSIGN_OR_RETURN(Value now, MakeList(args.positional, List::Kind::kTuple));
    const bool changed = !loop->last_changed.has_value() || !Equal(*loop->last_changed, now);
    loop->last_changed = std::move(now);
    return Value(changed);
  }
  return Bad(absl::StrCat("a ", self.TypeName(), " has no method '", name, "'"));
}

absl::StatusOr<Value> GetAttribute(const Value& object, const std::string& name) {
  if (object.is_undefined()) return object.UndefinedError();
  const auto method = [&] {
    return Value(std::make_shared<const Callable>(
        Callable{Callable::Kind::kMethod, name, object, nullptr, nullptr}));
  };
  if (object.ns() != nullptr) {
    const Value* found = object.ns()->fields.Find(name);
    return found != nullptr ? *found : Value::MakeUndefined("'" + name + "'");
  }
  if (object.dict() != nullptr) {
    // As in Python, a method hides a key of its name.
    if (IsIn(kDictMethods, name)) return method();
    const Value* found = object.dict()->Find(name);
    return found != nullptr ? *found : Value::MakeUndefined("'" + name + "'");
  }
  if ((object.is_string() && IsIn(kStringMethods, name)) ||
      (object.list() != nullptr && object.list()->has_indices() && IsIn(kListMethods, name))) {
    return method();
  }
  if (const Loop* loop = object.loop()) {
    const auto count = static_cast<int64_t>(loop->items.size());
    const auto index = static_cast<int64_t>(loop->index);
    if (name == "index") return Value(index + 1);
    if (name == "index0") return Value(index);
    if (name == "revindex") return Value(count - index);
    if (name == "revindex0") return Value(count - index - 1);
    if (name == "first") return Value(index == 0);
    if (name == "last") return Value(index + 1 == count);
    if (name == "length") return Value(count);
    if (name == "depth") return Value(int64_t{loop->depth});
    if (name == "depth0") return Value(int64_t{loop->depth} - 1);
    if (name == "previtem" && index > 0) return loop->items[loop->index - 1];
    if (name == "nextitem" && index + 1 < count) return loop->items[loop->index + 1];
    if (IsIn(kLoopMethods, name)) return method();
  }
  return Value::MakeUndefined(absl::StrCat("'", name, "' of a ", object.TypeName()));
}

absl::StatusOr<Value> GetItem(const Value& object, const Value& key, Budget& budget) {
  if (object.is_undefined()) return object.UndefinedError();
  if (object.dict() != nullptr) {
    LYNX_RETURN_IF_ERROR(budget.Spend(key.is_string() ? 0 : key.weight()));
    // What cannot be a key is none.
    if (const auto found = object.dict()->FindKey(key); found.ok() && *found != nullptr) {
      return **found;
    }
  }
  if (key.is_string()) return GetAttribute(object, key.as_string());
  if (key.is_integral()) {
    const auto at = [&key](size_t size) -> std::optional<size_t> {
      const int64_t count = static_cast<int64_t>(size);
      const int64_t index = key.as_int() < 0 ? key.as_int() + count : key.as_int();
      if (index < 0 || index >= count) return std::nullopt;
      return static_cast<size_t>(index);
    };
    if (object.list() != nullptr && object.list()->has_indices()) {
      if (const auto index = at(object.list()->items.size())) return object.list()->items[*index];
    } else if (object.is_string()) {
      LYNX_RETURN_IF_ERROR(budget.Spend(object.weight() * kCodePointCost));
      const std::vector<std::string_view> characters = CodePoints(object.as_string());
      if (const auto index = at(characters.size())) {
        return Value(object.as_text().Part(characters[*index]));
      }
    }
  }
  return Value::MakeUndefined(absl::StrCat("an item of a ", object.TypeName()));
}

}  // namespace lynx::text::jinja
