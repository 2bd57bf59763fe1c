#include "common/text/internal/jinja/value.h"

#include <unicode/uchar.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/json_shape.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"

namespace lynx::text::jinja {
namespace {

constexpr size_t kIndexedDictSize = 8;
// A namespace may hold the same list over and over at every level.
constexpr size_t kMaxReprBytes = size_t{64} << 20;
constexpr int64_t kMaxWeight = int64_t{1} << 56;

absl::Status TooDeep() {
  return absl::InvalidArgumentError(
      absl::StrCat("values are nested deeper than ", kMaxValueDepth, " levels"));
}

// Names of keys that are no strings begin with a byte that no UTF-8 text has.
constexpr char kOtherName = '\xFF';
bool IsOtherName(std::string_view name) { return name.starts_with(kOtherName); }

// Of a number without a fraction, all of them.
std::string WholeDigits(double number) {
  return number == 0 ? "0" : absl::StrFormat("%.0f", number);  // Not "-0".
}

absl::Status AppendKeyName(const Value& key, std::string& out) {
  if (key.is_string()) {
    absl::StrAppend(&out, "s", key.as_string().size(), ":", key.as_string());
  } else if (key.is_none()) {
    out += "n";
  } else if (key.is_undefined()) {
    out += "u";
  } else if (key.is_integral()) {
    absl::StrAppend(&out, "i", key.as_int());
  } else if (key.is_float()) {
    const double number = key.as_double();
    const bool is_whole = std::isfinite(number) && number == std::floor(number);
    absl::StrAppend(&out, is_whole ? absl::StrCat("i", WholeDigits(number))
                                   : absl::StrCat("f", FloatRepr(number)));
  } else if (key.big_integer() != nullptr) {
    absl::StrAppend(&out, "i", key.big_integer()->digits);
  } else if (key.list() != nullptr && key.list()->is_tuple()) {
    out += "(";
    for (const Value& item : key.list()->items) {
      LYNX_RETURN_IF_ERROR(AppendKeyName(item, out));
      out += ",";
    }
    out += ")";
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("a ", key.TypeName(), " cannot be the key of a dict"));
  }
  return absl::OkStatus();
}

UChar32 CodePoint(std::string_view text) {
  UChar32 c = 0;
  int32_t at = 0;
  U8_NEXT_OR_FFFD(reinterpret_cast<const uint8_t*>(text.data()), at,
                  static_cast<int32_t>(text.size()), c);
  return c;
}

std::string StringRepr(std::string_view text) {
  const bool single = text.find('\'') == std::string_view::npos;
  const bool use_double = !single && text.find('"') == std::string_view::npos;
  const char quote = use_double ? '"' : '\'';
  std::string out(1, quote);
  for (const std::string_view character : CodePoints(text)) {
    const UChar32 c = CodePoint(character);
    if (c == quote || c == '\\') {
      out += '\\';
      out += character;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == ' ' || (c > ' ' && c < 0x7F)) {
      out += character;
    } else if (c >= 0x80 && (U_GET_GC_MASK(c) & (U_GC_C_MASK | U_GC_Z_MASK)) == 0) {
      out += character;
    } else if (c < 0x100) {
      absl::StrAppendFormat(&out, "\\x%02x", c);
    } else if (c < 0x10000) {
      absl::StrAppendFormat(&out, "\\u%04x", c);
    } else {
      absl::StrAppendFormat(&out, "\\U%08x", c);
    }
  }
  out += quote;
  return out;
}

// In the order of their values.
int CompareDigits(std::string_view a, std::string_view b) {
  const bool negative = a.starts_with('-');
  if (negative != b.starts_with('-')) return negative ? -1 : 1;
  int order = a.size() != b.size() ? (a.size() < b.size() ? -1 : 1) : a.compare(b);
  order = order < 0 ? -1 : order > 0 ? 1 : 0;
  return negative ? -order : order;
}

// Of two numbers of which one is big.
absl::StatusOr<int> CompareBig(const Value& a, const Value& b) {
  const auto as_double = [](const Value& value) {
    return value.is_number() ? value.as_double()
                             : std::strtod(value.big_integer()->digits.c_str(), nullptr);
  };
  const auto digits = [](const Value& value) {
    if (value.big_integer() != nullptr) return value.big_integer()->digits;
    return value.is_float() ? WholeDigits(value.as_double()) : absl::StrCat(value.as_int());
  };
  for (const Value* value : {&a, &b}) {
    if (!value->is_number() && value->big_integer() == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("a ", a.TypeName(), " and a ", b.TypeName(), " have no order"));
    }
    // Fractions are far below, infinities beyond; what is no number is in no order.
    const double number = as_double(*value);
    if (value->is_float() && !(std::abs(number) < HUGE_VAL && number == std::floor(number))) {
      return as_double(a) < as_double(b) ? -1 : 1;
    }
  }
  return CompareDigits(digits(a), digits(b));
}

absl::Status AppendRepr(const Value& value, int depth, Text& out);

absl::Status AppendListRepr(const List& list, int depth, Text& out) {
  using Kind = List::Kind;
  if (list.kind == Kind::kRange) {
    const Range& range = list.range;
    out.Append(absl::StrCat("range(", range.begin, ", ", range.end,
                            range.step == 1 ? "" : absl::StrCat(", ", range.step), ")"));
    return absl::OkStatus();
  }
  if (list.is_iterator()) {
    return absl::InvalidArgumentError("an iterator cannot be printed: it has no '| list'");
  }
  const bool is_list = list.kind == Kind::kList;
  out.Append(list.kind == Kind::kKeys     ? "dict_keys("
             : list.kind == Kind::kValues ? "dict_values("
             : list.kind == Kind::kItems  ? "dict_items("
                                          : "");
  out.Append(list.is_tuple() ? "(" : "[");
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) out.Append(", ");
    LYNX_RETURN_IF_ERROR(AppendRepr(list.items[i], depth + 1, out));
  }
  if (list.is_tuple() && list.items.size() == 1) out.Append(",");
  out.Append(list.is_tuple() ? ")" : is_list ? "]" : "])");
  return absl::OkStatus();
}

// Nesting through namespaces is bounded here only: they change after they are put into lists.
absl::Status AppendRepr(const Value& value, int depth, Text& out) {
  if (depth > 2 * kMaxValueDepth) return TooDeep();
  if (out.size() > kMaxReprBytes) return absl::OutOfRangeError("a printed value is too large");
  if (value.is_string()) {
    out.Append(Text::From(value.as_text(), StringRepr(value.as_string())));
    return absl::OkStatus();
  }
  if (value.list() != nullptr) return AppendListRepr(*value.list(), depth, out);
  const Dict* dict = value.ns() != nullptr ? &value.ns()->fields : value.dict();
  if (dict != nullptr) {
    if (value.ns() != nullptr) out.Append("<Namespace ");
    out.Append("{");
    for (size_t i = 0; i < dict->items.size(); ++i) {
      if (i > 0) out.Append(", ");
      const std::string& name = dict->items[i].first;
      if (IsOtherName(name)) {
        LYNX_RETURN_IF_ERROR(AppendRepr(dict->Key(name), depth + 1, out));
      } else {
        const std::string key = StringRepr(name);
        out.Append(dict->is_given ? Text::Given(key) : Text(key));
      }
      out.Append(": ");
      LYNX_RETURN_IF_ERROR(AppendRepr(dict->items[i].second, depth + 1, out));
    }
    out.Append("}");
    if (value.ns() != nullptr) out.Append(">");
    return absl::OkStatus();
  }
  if (value.is_undefined()) {
    out.Append("Undefined");
    return absl::OkStatus();
  }
  LYNX_ASSIGN_OR_RETURN(const Text text, Str(value));
  out.Append(text);
  return absl::OkStatus();
}

bool EqualAt(const Value& a, const Value& b, int depth);

bool EqualDicts(const Dict& a, const Dict& b, int depth) {
  if (a.items.size() != b.items.size()) return false;
  return std::all_of(a.items.begin(), a.items.end(), [&](const auto& item) {
    const Value* other = b.Find(item.first);
    return other != nullptr && EqualAt(item.second, *other, depth + 1);
  });
}

// The mapping that a view of keys or items is of, its values none where it has keys only; empty
// where a key is no key.
Dict MappingOf(const List& view) {
  Dict dict;
  for (const Value& item : view.items) {
    const bool is_pair = view.kind == List::Kind::kItems;
    const Value& key = is_pair ? item.list()->items[0] : item;
    if (!dict.SetKey(key, is_pair ? item.list()->items[1] : Value(None{})).ok()) return {};
  }
  return dict;
}

bool EqualLists(const List& a, const List& b, int depth) {
  using Kind = List::Kind;
  if (a.kind != b.kind) return false;
  // Compared as sets.
  if (a.kind == Kind::kKeys || a.kind == Kind::kItems) {
    return EqualDicts(MappingOf(a), MappingOf(b), depth);
  }
  if (a.kind == Kind::kValues || a.is_iterator()) return &a == &b;
  return std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(),
                    [depth](const Value& x, const Value& y) { return EqualAt(x, y, depth + 1); });
}

bool EqualAt(const Value& a, const Value& b, int depth) {
  if (depth > 2 * kMaxValueDepth) return false;
  if (a.big_integer() != nullptr || b.big_integer() != nullptr) {
    const absl::StatusOr<int> order = CompareBig(a, b);
    return order.ok() && *order == 0;
  }
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float()) return a.as_double() == b.as_double();
    return a.as_int() == b.as_int();
  }
  if (a.is_string() && b.is_string()) return a.as_string() == b.as_string();
  if (a.is_none() || b.is_none()) return a.is_none() && b.is_none();
  if (a.is_undefined() || b.is_undefined()) return a.is_undefined() && b.is_undefined();
  if (a.list() != nullptr && b.list() != nullptr) return EqualLists(*a.list(), *b.list(), depth);
  if (a.dict() != nullptr && b.dict() != nullptr) return EqualDicts(*a.dict(), *b.dict(), depth);
  if (a.ns() != nullptr) return a.ns() == b.ns();
  if (a.loop() != nullptr) return a.loop() == b.loop();
  return a.callable() != nullptr && a.callable() == b.callable();
}

std::string JsonString(std::string_view text, bool ensure_ascii) {
  std::string out;
  out += '"';
  for (const std::string_view character : CodePoints(text)) {
    const UChar32 c = CodePoint(character);
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (c < 0x20 || (ensure_ascii && c >= 0x7F && c < 0x10000 && c != 0x7F)) {
          absl::StrAppendFormat(&out, "\\u%04x", c);
        } else if (ensure_ascii && c >= 0x10000) {
          absl::StrAppendFormat(&out, "\\u%04x\\u%04x", 0xD7C0 + (c >> 10), 0xDC00 | (c & 0x3FF));
        } else {
          out += character;
        }
    }
  }
  out += '"';
  return out;
}

// What json.dumps() makes of a key.
absl::StatusOr<std::string> JsonKey(const Dict& dict, const std::string& name) {
  if (!IsOtherName(name)) return name;
  const Value key = dict.Key(name);
  if (key.is_none()) return std::string("null");
  if (key.is_bool()) return std::string(key.as_bool() ? "true" : "false");
  if (key.is_int()) return absl::StrCat(key.as_int());
  if (key.big_integer() != nullptr) return key.big_integer()->digits;
  if (key.is_float()) return FloatRepr(key.as_double());
  return absl::InvalidArgumentError(absl::StrCat("a ", key.TypeName(), " cannot be a key in JSON"));
}

absl::Status SortByKey(const Dict& dict, std::vector<const std::pair<std::string, Value>*>& items) {
  if (!dict.has_other_keys()) {
    std::sort(items.begin(), items.end(), [](auto* a, auto* b) { return a->first < b->first; });
    return absl::OkStatus();
  }
  // Keys of two kinds have no order: some neighbours are then of two kinds, too.
  for (size_t i = 1; i < items.size(); ++i) {
    LYNX_RETURN_IF_ERROR(
        Compare(dict.Key(items[i - 1]->first), dict.Key(items[i]->first)).status());
  }
  std::sort(items.begin(), items.end(), [&dict](auto* a, auto* b) {
    return Compare(dict.Key(a->first), dict.Key(b->first)).value_or(0) < 0;
  });
  return absl::OkStatus();
}

absl::Status AppendJson(const Value& value, const JsonStyle& style, int depth, Text& out) {
  if (depth > 2 * kMaxValueDepth) return TooDeep();
  const auto new_line = [&](int level) {
    if (!style.indent.has_value()) return;
    out.Append("\n");
    for (int i = 0; i < level; ++i) out.Append(*style.indent);
  };
  if (value.is_none()) {
    out.Append("null");
  } else if (value.is_bool()) {
    out.Append(value.as_bool() ? "true" : "false");
  } else if (value.is_int()) {
    out.Append(std::to_string(value.as_int()));
  } else if (value.is_float()) {
    const double number = value.as_double();
    if (std::isfinite(number)) {
      out.Append(FloatRepr(number));
    } else {
      out.Append(std::isnan(number) ? "NaN" : number > 0 ? "Infinity" : "-Infinity");
    }
  } else if (value.big_integer() != nullptr) {
    out.Append(value.big_integer()->digits);
  } else if (value.is_string()) {
    out.Append(Text::From(value.as_text(), JsonString(value.as_string(), style.ensure_ascii)));
  } else if (const List* list = value.list();
             list != nullptr && (list->kind == List::Kind::kList || list->is_tuple())) {
    out.Append("[");
    for (size_t i = 0; i < list->items.size(); ++i) {
      if (i > 0) out.Append(style.item_separator);
      new_line(depth + 1);
      LYNX_RETURN_IF_ERROR(AppendJson(list->items[i], style, depth + 1, out));
    }
    if (!list->items.empty()) new_line(depth);
    out.Append("]");
  } else if (const Dict* dict = value.dict()) {
    std::vector<const std::pair<std::string, Value>*> items;
    for (const auto& item : dict->items) items.push_back(&item);
    if (style.sort_keys) LYNX_RETURN_IF_ERROR(SortByKey(*dict, items));
    out.Append("{");
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out.Append(style.item_separator);
      new_line(depth + 1);
      LYNX_ASSIGN_OR_RETURN(const std::string name, JsonKey(*dict, items[i]->first));
      const std::string key = JsonString(name, style.ensure_ascii);
      out.Append(dict->is_given ? Text::Given(key) : Text(key));
      out.Append(style.key_separator);
      LYNX_RETURN_IF_ERROR(AppendJson(items[i]->second, style, depth + 1, out));
    }
    if (!items.empty()) new_line(depth);
    out.Append("}");
  } else if (value.is_undefined()) {
    return value.UndefinedError();
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("a ", value.TypeName(), " cannot be written as JSON"));
  }
  return absl::OkStatus();
}

// Builds values without nlohmann's own documents: its ordered objects take quadratic time to fill.
class ValueBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return Add(None{}); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(int64_t{value}); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<uint64_t>(INT64_MAX)) return Add(BigInteger{absl::StrCat(value)});
    return Add(static_cast<int64_t>(value));
  }
  // Integers that fit in no type of the library come as this, too.
  bool number_float(number_float_t value, const string_t& text) override {
    if (text.find_first_of(".eE") != std::string::npos) return Add(double{value});
    absl::StatusOr<Value> integer = MakeInteger(text);
    if (!integer.ok()) error_ = std::string(integer.status().message());
    return integer.ok() && Add(*std::move(integer));
  }
  bool string(string_t& value) override { return Add(Text::Given(std::move(value))); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return Open(true); }
  bool start_array(size_t) override { return Open(false); }
  bool key(string_t& key) override {
    stack_.back().key = std::move(key);
    return true;
  }
  bool end_object() override {
    absl::StatusOr<Value> value = MakeDict(std::move(stack_.back().dict));
    stack_.pop_back();
    return value.ok() && Add(*std::move(value));
  }
  bool end_array() override {
    absl::StatusOr<Value> value = MakeList(std::move(stack_.back().list));
    stack_.pop_back();
    return value.ok() && Add(*std::move(value));
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& e) override {
    error_ = ReplaceInvalidUtf8(e.what());
    return false;
  }

  Value root;
  const std::string& error() const { return error_; }

 private:
  struct Frame {
    bool is_object;
    Dict dict;
    std::vector<Value> list;
    std::string key;
  };

  bool Open(bool is_object) {
    stack_.push_back({is_object, {}, {}, {}});
    stack_.back().dict.is_given = true;
    return true;
  }
  bool Add(Value value) {
    if (stack_.empty()) {
      root = std::move(value);
    } else if (stack_.back().is_object) {
      stack_.back().dict.Set(std::move(stack_.back().key), std::move(value));
    } else {
      stack_.back().list.push_back(std::move(value));
    }
    return true;
  }

  std::vector<Frame> stack_;
  std::string error_ = "malformed JSON";
};

}  // namespace

Value Value::MakeUndefined(std::string what) {
  Value value;
  value.data_ = Undefined{std::make_shared<const std::string>(std::move(what))};
  return value;
}

absl::Status Value::UndefinedError() const {
  const Undefined* undefined = Get<Undefined>();
  const bool named = undefined != nullptr && undefined->what != nullptr;
  return absl::InvalidArgumentError(
      absl::StrCat(named ? *undefined->what : "a value", " is undefined"));
}

const char* Value::TypeName() const {
  static constexpr std::array<const char*, 12> kNames = {
      "undefined value", "None",     "bool", "int",
      "float",           "string",   "list", "dict",
      "namespace",       "function", "loop", "int beyond 64 bits"};
  static constexpr std::array<const char*, 7> kListNames = {
      "list", "tuple", "range", "dict_keys", "dict_values", "dict_items", "iterator"};
  if (list() != nullptr) return kListNames[static_cast<size_t>(list()->kind)];
  return kNames[data_.index()];
}

int Value::depth() const {
  if (list() != nullptr) return list()->depth;
  if (dict() != nullptr) return dict()->depth;
  return 0;
}

int64_t Value::weight() const {
  if (is_string()) return static_cast<int64_t>(as_string().size());
  if (list() != nullptr) return list()->weight;
  if (dict() != nullptr) return dict()->weight;
  if (big_integer() != nullptr) return static_cast<int64_t>(big_integer()->digits.size());
  return 0;
}

std::optional<size_t> Dict::IndexOf(std::string_view key) const {
  if (!index_.empty()) {
    const auto it = index_.find(absl::string_view(key.data(), key.size()));
    return it == index_.end() ? std::nullopt : std::optional<size_t>(it->second);
  }
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].first == key) return i;
  }
  return std::nullopt;
}

const Value* Dict::Find(std::string_view key) const {
  const std::optional<size_t> index = IndexOf(key);
  return index.has_value() ? &items[*index].second : nullptr;
}

void Dict::Set(std::string key, Value value) {
  if (const std::optional<size_t> index = IndexOf(key)) {
    items[*index].second = std::move(value);
    return;
  }
  items.emplace_back(std::move(key), std::move(value));
  if (items.size() == kIndexedDictSize) {
    for (size_t i = 0; i < items.size(); ++i) index_[items[i].first] = i;
  } else if (items.size() > kIndexedDictSize) {
    index_[items.back().first] = items.size() - 1;
  }
}

absl::StatusOr<std::string> KeyName(const Value& key) {
  if (key.is_string()) return key.as_string();
  std::string name(1, kOtherName);
  LYNX_RETURN_IF_ERROR(AppendKeyName(key, name));
  return name;
}

absl::StatusOr<const Value*> Dict::FindKey(const Value& key) const {
  if (key.is_string()) return Find(key.as_string());
  LYNX_ASSIGN_OR_RETURN(const std::string name, KeyName(key));
  return Find(name);
}

absl::Status Dict::SetKey(const Value& key, Value value) {
  LYNX_ASSIGN_OR_RETURN(std::string name, KeyName(key));
  // Of equal keys the first stays.
  if (!key.is_string()) other_keys_.try_emplace(name, key);
  Set(std::move(name), std::move(value));
  return absl::OkStatus();
}

void Dict::SetAll(const Dict& other) {
  for (const auto& [name, key] : other.other_keys_) other_keys_.try_emplace(name, key);
  for (const auto& [name, value] : other.items) Set(name, value);
}

Value Dict::Key(const std::string& name) const {
  if (const auto it = other_keys_.find(name); it != other_keys_.end()) return it->second;
  return is_given ? Value(Text::Given(name)) : Value(name);
}

absl::StatusOr<Value> MakeInteger(std::string_view digits) {
  constexpr size_t kMostDigits = 4300;
  const bool negative = digits.starts_with('-');
  std::string_view magnitude = digits.substr(negative ? 1 : 0);
  magnitude.remove_prefix(std::min(magnitude.find_first_not_of('0'), magnitude.size() - 1));
  if (magnitude.size() > kMostDigits) {
    return absl::InvalidArgumentError(
        absl::StrCat("an integer of ", magnitude.size(), " digits: at most ", kMostDigits));
  }
  const std::string text = absl::StrCat(negative ? "-" : "", std::string(magnitude));
  int64_t value = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  if (read.ec == std::errc()) return Value(value);
  return Value(BigInteger{text});
}

namespace {

absl::StatusOr<Value> MakeSequence(List made, std::vector<Value> items) {
  auto list = std::make_shared<List>(std::move(made));
  for (const Value& item : items) {
    list->depth = std::max(list->depth, item.depth() + 1);
    list->weight = std::min(list->weight + kItemCost + item.weight(), kMaxWeight);
  }
  if (list->depth > kMaxValueDepth) return TooDeep();
  list->items = std::move(items);
  return Value(std::shared_ptr<const List>(std::move(list)));
}

}  // namespace

absl::StatusOr<Value> MakeList(std::vector<Value> items, List::Kind kind) {
  List list;
  list.kind = kind;
  return MakeSequence(std::move(list), std::move(items));
}

absl::StatusOr<Value> MakeRange(const Range& range, std::vector<Value> items) {
  List list;
  list.kind = List::Kind::kRange;
  list.range = range;
  return MakeSequence(std::move(list), std::move(items));
}

absl::StatusOr<Value> MakeDict(Dict dict) {
  dict.weight = 0;
  for (const auto& [key, item] : dict.items) {
    dict.depth = std::max(dict.depth, item.depth() + 1);
    const int64_t key_weight = static_cast<int64_t>(key.size()) + kItemCost;
    dict.weight = std::min(dict.weight + key_weight + item.weight(), kMaxWeight);
  }
  if (dict.depth > kMaxValueDepth) return TooDeep();
  return Value(std::shared_ptr<const Dict>(std::make_shared<Dict>(std::move(dict))));
}

bool Truthy(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (value.is_float()) return value.as_double() != 0;
  if (value.is_integral()) return value.as_int() != 0;
  if (value.is_string()) return !value.as_string().empty();
  if (value.list() != nullptr) return value.list()->is_iterator() || !value.list()->items.empty();
  if (value.dict() != nullptr) return !value.dict()->items.empty();
  return true;
}

std::string FloatRepr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::array<char, 40> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                 std::chars_format::scientific);
  // d[.ddd]e[+-]xx: Python moves the point where the exponent is in -4..15.
  std::string digits(buffer.data(), end.ptr);
  const size_t e = digits.find('e');
  const int exponent = std::atoi(digits.c_str() + e + 1);
  digits.resize(e);
  std::string sign;
  if (digits[0] == '-') {
    sign = "-";
    digits.erase(0, 1);
  }
  std::erase(digits, '.');
  if (exponent < -4 || exponent >= 16) {
    std::string mantissa = digits.substr(0, 1);
    if (digits.size() > 1) mantissa += "." + digits.substr(1);
    return sign + mantissa +
           absl::StrFormat("e%c%02d", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0)
    return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return sign + digits + std::string(whole - digits.size(), '0') + ".0";
  return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

absl::StatusOr<Text> Str(const Value& value) {
  if (value.is_undefined()) return Text();
  if (value.is_none()) return Text("None");
  if (value.is_bool()) return Text(value.as_bool() ? "True" : "False");
  if (value.is_int()) return Text(absl::StrCat(value.as_int()));
  if (value.is_float()) return Text(FloatRepr(value.as_double()));
  if (value.big_integer() != nullptr) return Text(value.big_integer()->digits);
  if (value.is_string()) return value.as_text();
  if (value.callable() != nullptr || value.loop() != nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("a ", value.TypeName(), " cannot be printed"));
  }
  return Repr(value);
}

absl::StatusOr<Text> Repr(const Value& value) {
  Text out;
  LYNX_RETURN_IF_ERROR(AppendRepr(value, 0, out));
  return out;
}

bool Equal(const Value& a, const Value& b) { return EqualAt(a, b, 0); }

absl::StatusOr<int> Compare(const Value& a, const Value& b) {
  const auto order = [](const auto& x, const auto& y) { return x < y ? -1 : y < x ? 1 : 0; };
  if (a.is_undefined()) return a.UndefinedError();
  if (b.is_undefined()) return b.UndefinedError();
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float()) return order(a.as_double(), b.as_double());
    return order(a.as_int(), b.as_int());
  }
  if (a.big_integer() != nullptr || b.big_integer() != nullptr) return CompareBig(a, b);
  // Bytes of UTF-8 sort as code points do.
  if (a.is_string() && b.is_string()) return order(a.as_string(), b.as_string());
  if (a.list() != nullptr && b.list() != nullptr && a.list()->kind == b.list()->kind &&
      (a.list()->is_tuple() || a.list()->kind == List::Kind::kList)) {
    const std::vector<Value>& left = a.list()->items;
    const std::vector<Value>& right = b.list()->items;
    for (size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
      if (!Equal(left[i], right[i])) return Compare(left[i], right[i]);
    }
    return order(left.size(), right.size());
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a ", a.TypeName(), " and a ", b.TypeName(), " have no order"));
}

absl::StatusOr<std::vector<Value>> Iterate(const Value& value) {
  std::vector<Value> items;
  if (value.is_undefined()) return items;
  if (const List* list = value.list()) {
    const size_t first = list->is_iterator() ? std::exchange(list->taken, list->items.size()) : 0;
    items.assign(list->items.begin() + static_cast<std::ptrdiff_t>(first), list->items.end());
    return items;
  }
  if (value.dict() != nullptr) {
    for (const auto& item : value.dict()->items) items.push_back(value.dict()->Key(item.first));
    return items;
  }
  if (value.is_string()) {
    const Text& text = value.as_text();
    for (const std::string_view c : CodePoints(text.bytes())) items.emplace_back(text.Part(c));
    return items;
  }
  return absl::InvalidArgumentError(absl::StrCat("a ", value.TypeName(), " cannot be iterated"));
}

absl::StatusOr<bool> Contains(const Value& container, const Value& item) {
  if (container.is_string()) {
    if (!item.is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat("a ", item.TypeName(), " cannot be searched in a string"));
    }
    return container.as_string().find(item.as_string()) != std::string::npos;
  }
  if (container.dict() != nullptr) {
    LYNX_ASSIGN_OR_RETURN(const Value* found, container.dict()->FindKey(item));
    return found != nullptr;
  }
  if (const List* list = container.list()) {
    if (list->kind == List::Kind::kKeys) LYNX_RETURN_IF_ERROR(KeyName(item).status());
    // An iterator is used up as far as the search goes.
    size_t at = list->is_iterator() ? list->taken : 0;
    while (at < list->items.size() && !Equal(item, list->items[at])) ++at;
    if (list->is_iterator()) list->taken = std::min(at + 1, list->items.size());
    return at < list->items.size();
  }
  if (container.is_undefined()) return false;
  return absl::InvalidArgumentError(absl::StrCat("'in' cannot search a ", container.TypeName()));
}

absl::StatusOr<Text> ToJson(const Value& value, const JsonStyle& style) {
  Text out;
  LYNX_RETURN_IF_ERROR(AppendJson(value, style, 0, out));
  return out;
}

absl::StatusOr<Value> FromJson(std::string_view text, std::string_view place) {
  const auto refuse = [&](std::string_view why) {
    return absl::InvalidArgumentError(std::string(place) + ": " + std::string(why));
  };
  if (absl::Status shape = CheckJsonShape(text); !shape.ok()) {
    return refuse(std::string(shape.message()));
  }
  ValueBuilder builder;
  try {
    if (!nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) {
      return refuse(builder.error());
    }
  } catch (const nlohmann::json::exception& e) {
    return refuse(ReplaceInvalidUtf8(e.what()));
  }
  return builder.root;
}

size_t CodePointCount(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::vector<std::string_view> CodePoints(std::string_view text) {
  std::vector<std::string_view> out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t length = std::max<size_t>(1, Utf8SequenceLength(text));
    out.push_back(text.substr(0, length));
    text.remove_prefix(length);
  }
  return out;
}

bool IsSpace(std::string_view code_point) {
  const UChar32 c = CodePoint(code_point);
  return u_isUWhiteSpace(c) || (c >= 0x1C && c <= 0x1F);
}

std::string_view StripSpace(std::string_view text, bool left, bool right) {
  while (left && !text.empty()) {
    const size_t length = std::max<size_t>(1, Utf8SequenceLength(text));
    if (!IsSpace(text.substr(0, length))) break;
    text.remove_prefix(length);
  }
  while (right && !text.empty()) {
    size_t begin = text.size() - 1;
    while (begin > 0 && (text[begin] & 0xC0) == 0x80) --begin;
    if (!IsSpace(text.substr(begin))) break;
    text.remove_suffix(text.size() - begin);
  }
  return text;
}

}  // namespace lynx::text::jinja
