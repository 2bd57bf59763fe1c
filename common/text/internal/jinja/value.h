#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/text/internal/jinja/text.h"

// Values of the template language, with the meaning they have in Python: what a template prints,
// compares and slices must come out as the reference environment has it.
namespace lynx::text::jinja {

// Lists and dicts nest no deeper, so that printing, comparing and destroying them may recurse.
inline constexpr int kMaxValueDepth = 128;
// What handling one item of a list costs, in bytes handled in the same time.
inline constexpr int64_t kItemCost = 16;

struct List;
struct Dict;
struct Namespace;
struct Callable;
struct Loop;

struct Undefined {
  std::shared_ptr<const std::string> what;  // What was looked up, for messages.
};
struct None {};
// An integer beyond 64 bits: written and compared as it is, and never computed with.
struct BigInteger {
  std::string digits;  // In base ten, behind '-' where it is negative.
};

// Cheap to copy: everything big is shared and immutable, namespaces excepted.
class Value {
 public:
  Value() : data_(Undefined{}) {}
  Value(None none) : data_(none) {}       // NOLINT: values are written as what they hold.
  Value(bool value) : data_(value) {}     // NOLINT
  Value(int64_t value) : data_(value) {}  // NOLINT
  Value(double value) : data_(value) {}   // NOLINT
  Value(Text text)                        // NOLINT
      : data_(std::make_shared<const Text>(std::move(text))) {}
  Value(std::string text) : Value(Text(std::move(text))) {}            // NOLINT
  Value(const char* text) : Value(std::string(text)) {}                // NOLINT
  Value(std::shared_ptr<const List> list) : data_(std::move(list)) {}  // NOLINT
  Value(std::shared_ptr<const Dict> dict) : data_(std::move(dict)) {}  // NOLINT
  Value(std::shared_ptr<Namespace> ns) : data_(std::move(ns)) {}       // NOLINT
  Value(std::shared_ptr<const Callable> f) : data_(std::move(f)) {}    // NOLINT
  Value(std::shared_ptr<Loop> loop) : data_(std::move(loop)) {}        // NOLINT
  Value(BigInteger big)                                                // NOLINT
      : data_(std::make_shared<const BigInteger>(std::move(big))) {}
  static Value MakeUndefined(std::string what);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_int() const { return std::holds_alternative<int64_t>(data_); }
  bool is_float() const { return std::holds_alternative<double>(data_); }
  // Of what can be computed with.
  bool is_number() const { return is_bool() || is_int() || is_float(); }
  bool is_string() const { return Get<std::shared_ptr<const Text>>() != nullptr; }

  bool as_bool() const { return std::get<bool>(data_); }
  // Of a bool or an int: True counts as 1.
  int64_t as_int() const { return is_bool() ? int64_t{as_bool()} : std::get<int64_t>(data_); }
  double as_double() const {
    return is_float() ? std::get<double>(data_) : static_cast<double>(as_int());
  }
  const Text& as_text() const { return *std::get<std::shared_ptr<const Text>>(data_); }
  const std::string& as_string() const { return as_text().bytes(); }
  // Null when it is something else.
  const List* list() const { return Pointer<std::shared_ptr<const List>>(); }
  const Dict* dict() const { return Pointer<std::shared_ptr<const Dict>>(); }
  Namespace* ns() const { return Pointer<std::shared_ptr<Namespace>>(); }
  const Callable* callable() const { return Pointer<std::shared_ptr<const Callable>>(); }
  Loop* loop() const { return Pointer<std::shared_ptr<Loop>>(); }
  const BigInteger* big_integer() const { return Pointer<std::shared_ptr<const BigInteger>>(); }
  bool is_integral() const { return is_bool() || is_int(); }

  // "'x' is undefined", for an undefined value that is used.
  absl::Status UndefinedError() const;
  const char* TypeName() const;
  int depth() const;
  // What going through all of it costs: roughly its bytes, at every depth.
  int64_t weight() const;

 private:
  template <typename T>
  const T* Get() const {
    return std::get_if<T>(&data_);
  }
  template <typename T>
  typename T::element_type* Pointer() const {
    const T* pointer = Get<T>();
    return pointer == nullptr ? nullptr : pointer->get();
  }

  std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const Text>,
               std::shared_ptr<const List>, std::shared_ptr<const Dict>, std::shared_ptr<Namespace>,
               std::shared_ptr<const Callable>, std::shared_ptr<Loop>,
               std::shared_ptr<const BigInteger>>
      data_;
};

// What range() gave, to print and slice it.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t step = 1;
};

// A sequence: what Python prints, compares and takes apart in other ways is told by its kind.
struct List {
  enum class Kind {
    kList,
    kTuple,
    kRange,
    // Of a mapping; they have no indices.
    kKeys,
    kValues,
    kItems,
    // What filters such as map and select give: gone through once, without a length.
    kIterator,
  };

  std::vector<Value> items;
  Kind kind = Kind::kList;
  int depth = 1;
  int64_t weight = 0;
  Range range;               // Of kRange.
  mutable size_t taken = 0;  // Of kIterator: how many items are used up. Values stay in one thread.

  bool is_tuple() const { return kind == Kind::kTuple; }
  bool is_iterator() const { return kind == Kind::kIterator; }
  bool has_indices() const {
    return kind == Kind::kList || kind == Kind::kTuple || kind == Kind::kRange;
  }
};

// Keeps the order of insertion, as Python's dict does. An item's key is here its name: a string
// names itself, and the others have names that no string has (KeyName).
struct Dict {
  std::vector<std::pair<std::string, Value>> items;
  int depth = 1;
  int64_t weight = 0;
  bool is_given = false;  // The keys came with a request.

  const Value* Find(std::string_view key) const;
  void Set(std::string key, Value value);
  // The same for any key. InvalidArgument for what cannot be one.
  absl::StatusOr<const Value*> FindKey(const Value& key) const;
  absl::Status SetKey(const Value& key, Value value);
  void SetAll(const Dict& other);
  // A key of this dict as a value.
  Value Key(const std::string& name) const;
  // Whether some key is no string.
  bool has_other_keys() const { return !other_keys_.empty(); }

 private:
  std::optional<size_t> IndexOf(std::string_view key) const;

  absl::flat_hash_map<std::string, size_t> index_;      // Of `items`, once there are many.
  absl::flat_hash_map<std::string, Value> other_keys_;  // By name; those that are no strings.
};

struct Namespace {
  Dict fields;
};

struct Macro;
struct Scope;
struct Statement;

// A function that a template can name: a global one, a method bound to its object, or a macro.
struct Callable {
  enum class Kind { kFunction, kMethod, kMacro };
  Kind kind;
  std::string name;
  Value self;                    // Of a method.
  const Macro* macro = nullptr;  // Owned by the template.
  // The variables that the body of a call block sees, besides those of the top level.
  std::shared_ptr<const std::vector<std::pair<std::string, Value>>> closure;
};

// The `loop` variable of a for block.
struct Loop {
  std::vector<Value> items;
  size_t index = 0;
  std::optional<Value> last_changed;  // What loop.changed() was given last.
  int depth = 1;                      // Of a recursive loop.
  // Of a recursive loop while it runs: what loop() runs again.
  const Statement* statement = nullptr;
  Scope* scope = nullptr;
};

// InvalidArgument when it would nest too deep.
absl::StatusOr<Value> MakeList(std::vector<Value> items, List::Kind kind = List::Kind::kList);
absl::StatusOr<Value> MakeRange(const Range& range, std::vector<Value> items);
absl::StatusOr<Value> MakeDict(Dict dict);
// InvalidArgument: more digits than Python takes.
absl::StatusOr<Value> MakeInteger(std::string_view digits);

// The name of a key: equal keys have one, so 1, 1.0 and True are the same. InvalidArgument for a
// list, a dict and what else Python cannot hash or the template cannot spell.
absl::StatusOr<std::string> KeyName(const Value& key);

bool Truthy(const Value& value);
// Python's str() and repr().
absl::StatusOr<Text> Str(const Value& value);
absl::StatusOr<Text> Repr(const Value& value);
bool Equal(const Value& a, const Value& b);
// -1, 0 or 1; InvalidArgument for values without an order.
absl::StatusOr<int> Compare(const Value& a, const Value& b);
// What a for block goes through; an iterator is used up.
absl::StatusOr<std::vector<Value>> Iterate(const Value& value);
absl::StatusOr<bool> Contains(const Value& container, const Value& item);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  // One level of it.
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
// As json.dumps() of Python writes it.
absl::StatusOr<Text> ToJson(const Value& value, const JsonStyle& style);
// All strings of it are given by a request. Objects keep their order. `place` names the text in
// errors. Refuses text nested deeper than kMaxJsonDepth or with more than a million elements.
absl::StatusOr<Value> FromJson(std::string_view text, std::string_view place);

std::string FloatRepr(double value);

// Strings are indexed by code points.
size_t CodePointCount(std::string_view text);
std::vector<std::string_view> CodePoints(std::string_view text);
// Python's str.isspace() for one code point (given as UTF-8).
bool IsSpace(std::string_view code_point);
std::string_view StripSpace(std::string_view text, bool left, bool right);

}  // namespace lynx::text::jinja
