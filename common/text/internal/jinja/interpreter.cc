#include "common/text/internal/jinja/interpreter.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/text/internal/jinja/format.h"
#include "common/text/internal/jinja/functions.h"
#include "common/text/internal/jinja/lexer.h"

namespace lynx::text::jinja {
namespace {

constexpr int kMaxDepth = 600;  // Of nested evaluations, macro calls included.
constexpr size_t kMaxNamespaces = 4096;
// What a call's statements take of that, besides their expressions.
constexpr int kCallDepth = 8;
constexpr char kCaller[] = "caller";
constexpr int64_t kStepCost = 32;  // Of one evaluation, in bytes made in the same time.

enum class Flow { kNext, kBreak, kContinue };

}  // namespace

// The variables of one block; looked up outwards through `parent`.
struct Scope {
  const Scope* parent = nullptr;
  std::vector<std::pair<std::string, Value>> variables;

  const Value* Find(const std::string& name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->parent) {
      for (const auto& [key, value] : scope->variables) {
        if (key == name) return &value;
      }
    }
    return nullptr;
  }
  void Set(const std::string& name, Value value) {
    for (auto& [key, old] : variables) {
      if (key == name) {
        old = std::move(value);
        return;
      }
    }
    variables.emplace_back(name, std::move(value));
  }
};

namespace {

// A list or tuple.
bool IsPlain(const List& list) { return list.kind == List::Kind::kList || list.is_tuple(); }

absl::Status Bad(std::string message) { return absl::InvalidArgumentError(std::move(message)); }

class Interpreter {
 public:
  explicit Interpreter(const RenderOptions& options)
      : options_(options), budget_(options.max_work) {}

  // Namespaces can hold one another in a circle: taken apart here, or they would never be freed.
  ~Interpreter() {
    for (const auto& ns : namespaces_) ns->fields = Dict();
  }

  absl::StatusOr<Text> Run(const Body& body, std::vector<std::pair<std::string, Value>> variables) {
    Scope context;
    context.variables = std::move(variables);
    Scope top;
    top.parent = &context;
    top_ = &top;
    Text out;
    LYNX_RETURN_IF_ERROR(Execute(body, top, out).status());
    return out;
  }

 private:
  // ---- Statements ----

  absl::StatusOr<Flow> Execute(const Body& body, Scope& scope, Text& out) {
    for (const auto& statement : body) {
      absl::StatusOr<Flow> flow = ExecuteOne(*statement, scope, out);
      if (!flow.ok()) return At(statement->place, flow.status());
      if (*flow != Flow::kNext) return flow;
    }
    return Flow::kNext;
  }

  // The innermost expression or statement names its place; raise_exception() speaks for itself.
  absl::Status At(const Place& place, const absl::Status& status) {
    if (located_) return status;
    located_ = true;
    return absl::Status(status.code(),
                        TemplateError(place, std::string(status.message())).message());
  }

  absl::Status Write(const Text& text, Text& out) {
    LYNX_RETURN_IF_ERROR(budget_.Spend(static_cast<int64_t>(text.size())));
    if (static_cast<int64_t>(out.size() + text.size()) > options_.max_output_bytes) {
      return absl::OutOfRangeError(
          absl::StrCat("the rendered chat template is over ", options_.max_output_bytes, " bytes"));
    }
    out.Append(text);
    return absl::OkStatus();
  }

  absl::StatusOr<Flow> ExecuteOne(const Statement& statement, Scope& scope, Text& out) {
    using Kind = Statement::Kind;
    LYNX_RETURN_IF_ERROR(budget_.Spend(kStepCost));
    switch (statement.kind) {
      case Kind::kText:
        LYNX_RETURN_IF_ERROR(Write(statement.text, out));
        return Flow::kNext;
      case Kind::kPrint: {
        LYNX_ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.value, scope));
        if (value.is_string()) {
          LYNX_RETURN_IF_ERROR(Write(value.as_text(), out));
          return Flow::kNext;
        }
        LYNX_RETURN_IF_ERROR(budget_.Spend(value.weight()));
        LYNX_ASSIGN_OR_RETURN(const Text text, Str(value));
        LYNX_RETURN_IF_ERROR(Write(text, out));
        return Flow::kNext;
      }
      case Kind::kIf:
        for (const Branch& branch : statement.branches) {
          if (branch.condition != nullptr) {
            LYNX_ASSIGN_OR_RETURN(const Value condition, Evaluate(*branch.condition, scope));
            if (!Truthy(condition)) continue;
          }
          return Execute(branch.body, scope, out);
        }
        return Flow::kNext;
      case Kind::kFor:
        return ExecuteFor(statement, scope, out);
      case Kind::kSet: {
        LYNX_ASSIGN_OR_RETURN(Value value, Evaluate(*statement.value, scope));
        LYNX_RETURN_IF_ERROR(Assign(statement.target, std::move(value), scope));
        return Flow::kNext;
      }
      case Kind::kSetBlock:
      case Kind::kFilter: {
        Text text;
        Scope inner;
        inner.parent = &scope;
        LYNX_ASSIGN_OR_RETURN(const Flow flow, Execute(statement.body, inner, text));
        inner.Set(kCapturedText, Value(std::move(text)));
        LYNX_ASSIGN_OR_RETURN(Value value, Evaluate(*statement.value, inner));
        if (statement.kind == Kind::kSetBlock) {
          LYNX_RETURN_IF_ERROR(Assign(statement.target, std::move(value), scope));
        } else {
          if (!value.is_string()) {
            return Bad(absl::StrCat("the filters of a block gave a ", value.TypeName()));
          }
          LYNX_RETURN_IF_ERROR(Write(value.as_text(), out));
        }
        return flow;
      }
      case Kind::kMacro:
        scope.Set(statement.macro->name, Value(std::make_shared<const Callable>(
                                             Callable{Callable::Kind::kMacro, statement.macro->name,
                                                      Value(), statement.macro.get(), nullptr})));
        return Flow::kNext;
      case Kind::kCall: {
        LYNX_ASSIGN_OR_RETURN(const Value callee, Evaluate(*statement.value->args[0], scope));
        LYNX_ASSIGN_OR_RETURN(Arguments args, EvaluateArguments(*statement.value, scope));
        LYNX_ASSIGN_OR_RETURN(auto closure, Snapshot(scope));
        args.named.emplace_back(kCaller, Value(std::make_shared<const Callable>(
                                             Callable{Callable::Kind::kMacro, kCaller, Value(),
                                                      statement.macro.get(), std::move(closure)})));
        LYNX_ASSIGN_OR_RETURN(const Value value, CallValue(callee, args));
        if (!value.is_string()) return Bad(absl::StrCat("a call block gave a ", value.TypeName()));
        LYNX_RETURN_IF_ERROR(Write(value.as_text(), out));
        return Flow::kNext;
      }
      case Kind::kWith: {
        Scope inner;
        inner.parent = &scope;
        for (const auto& [name, expr] : statement.assignments) {
          LYNX_ASSIGN_OR_RETURN(Value value, Evaluate(*expr, scope));
          inner.Set(name, std::move(value));
        }
        return Execute(statement.body, inner, out);
      }
      case Kind::kScope: {
        Scope inner;
        inner.parent = &scope;
        return Execute(statement.body, inner, out);
      }
      case Kind::kBreak:
        return Flow::kBreak;
      case Kind::kContinue:
        return Flow::kContinue;
    }
    return Flow::kNext;
  }

  // All variables between `scope` and the top level.
  absl::StatusOr<std::shared_ptr<const std::vector<std::pair<std::string, Value>>>> Snapshot(
      const Scope& scope) {
    Scope all;
    for (const Scope* from = &scope; from != nullptr && from != top_; from = from->parent) {
      LYNX_RETURN_IF_ERROR(
          budget_.Spend(kStepCost * static_cast<int64_t>(from->variables.size() + 1)));
      for (const auto& [name, value] : from->variables) {
        if (all.Find(name) == nullptr) all.variables.emplace_back(name, value);
      }
    }
    return std::make_shared<const std::vector<std::pair<std::string, Value>>>(
        std::move(all.variables));
  }

  absl::StatusOr<Flow> ExecuteFor(const Statement& statement, Scope& scope, Text& out) {
    LYNX_ASSIGN_OR_RETURN(const Value iterated, Evaluate(*statement.value, scope));
    return RunLoop(statement, iterated, 1, scope, out);
  }

  absl::StatusOr<Flow> RunLoop(const Statement& statement, const Value& iterated, int loop_depth,
                               Scope& scope, Text& out) {
    LYNX_ASSIGN_OR_RETURN(std::vector<Value> items, Iterate(iterated));
    LYNX_RETURN_IF_ERROR(budget_.Spend(static_cast<int64_t>(items.size()) * kStepCost));
    if (statement.condition != nullptr) {
      std::vector<Value> kept;
      for (Value& item : items) {
        Scope inner;
        inner.parent = &scope;
        LYNX_RETURN_IF_ERROR(Assign(statement.target, item, inner));
        LYNX_ASSIGN_OR_RETURN(const Value wanted, Evaluate(*statement.condition, inner));
        if (Truthy(wanted)) kept.push_back(std::move(item));
      }
      items = std::move(kept);
    }
    if (items.empty()) return Execute(statement.else_body, scope, out);
    auto loop = std::make_shared<Loop>();
    loop->items = std::move(items);
    loop->depth = loop_depth;
    if (statement.recursive) {
      loop->statement = &statement;
      loop->scope = &scope;
    }
    const absl::StatusOr<Flow> flow = RunItems(statement, loop, scope, out);
    loop->statement = nullptr;
    loop->scope = nullptr;
    return flow;
  }

  absl::StatusOr<Flow> RunItems(const Statement& statement, const std::shared_ptr<Loop>& loop,
                                Scope& scope, Text& out) {
    for (; loop->index < loop->items.size(); ++loop->index) {
      Scope inner;
      inner.parent = &scope;
      inner.variables.emplace_back("loop", Value(loop));
      LYNX_RETURN_IF_ERROR(Assign(statement.target, loop->items[loop->index], inner));
      LYNX_ASSIGN_OR_RETURN(const Flow flow, Execute(statement.body, inner, out));
      if (flow == Flow::kBreak) break;
    }
    return Flow::kNext;
  }

  absl::Status Assign(const Target& target, Value value, Scope& scope) {
    if (!target.field.empty()) {
      const Value* object = scope.Find(target.names[0]);
      if (object == nullptr || object->ns() == nullptr) {
        return Bad("'" + target.names[0] + "' is not a namespace");
      }
      object->ns()->fields.Set(target.field, std::move(value));
      return absl::OkStatus();
    }
    if (!target.unpacks) {
      scope.Set(target.names[0], std::move(value));
      return absl::OkStatus();
    }
    LYNX_ASSIGN_OR_RETURN(std::vector<Value> parts, Iterate(value));
    if (parts.size() != target.names.size()) {
      return Bad(absl::StrCat("cannot unpack ", parts.size(), " values into ", target.names.size(),
                              " names"));
    }
    for (size_t i = 0; i < parts.size(); ++i) scope.Set(target.names[i], std::move(parts[i]));
    return absl::OkStatus();
  }

  // ---- Expressions ----

  absl::StatusOr<Value> Evaluate(const Expr& expr, const Scope& scope) {
    LYNX_RETURN_IF_ERROR(budget_.Spend(kStepCost));
    if (++depth_ > kMaxDepth) {
      return absl::OutOfRangeError("the chat template calls itself too deep");
    }
    absl::StatusOr<Value> value = EvaluateInner(expr, scope);
    --depth_;
    if (!value.ok()) return At(expr.place, value.status());
    return value;
  }

  absl::StatusOr<std::vector<Value>> EvaluateAll(const std::vector<ExprPtr>& exprs, size_t from,
                                                 const Scope& scope) {
    std::vector<Value> values;
    for (size_t i = from; i < exprs.size(); ++i) {
      LYNX_ASSIGN_OR_RETURN(Value value, Evaluate(*exprs[i], scope));
      if (exprs[i]->kind == Expr::Kind::kSpread) {
        LYNX_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(value));
        LYNX_RETURN_IF_ERROR(budget_.Spend(static_cast<int64_t>(items.size()) * kItemCost));
        values.insert(values.end(), items.begin(), items.end());
        continue;
      }
      values.push_back(std::move(value));
    }
    return values;
  }

  absl::StatusOr<Arguments> EvaluateArguments(const Expr& expr, const Scope& scope) {
    Arguments args;
    LYNX_ASSIGN_OR_RETURN(args.positional, EvaluateAll(expr.args, 1, scope));
    for (const auto& [name, argument] : expr.named) {
      LYNX_ASSIGN_OR_RETURN(Value value, Evaluate(*argument, scope));
      args.named.emplace_back(name, std::move(value));
    }
    return args;
  }

  absl::StatusOr<Value> EvaluateInner(const Expr& expr, const Scope& scope) {
    using Kind = Expr::Kind;
    switch (expr.kind) {
      case Kind::kConstant:
        return expr.constant;
      case Kind::kName: {
        const Value* found = scope.Find(expr.text);
        if (found != nullptr) return *found;
        if (IsKnownFunction(expr.text)) {
          return Value(std::make_shared<const Callable>(
              Callable{Callable::Kind::kFunction, expr.text, Value(), nullptr, nullptr}));
        }
        return Value::MakeUndefined("'" + expr.text + "'");
      }
      case Kind::kList:
      case Kind::kTuple: {
        LYNX_ASSIGN_OR_RETURN(std::vector<Value> items, EvaluateAll(expr.args, 0, scope));
        return MakeList(std::move(items),
                        expr.kind == Kind::kTuple ? List::Kind::kTuple : List::Kind::kList);
      }
      case Kind::kDict: {
        Dict dict;
        for (size_t i = 0; i + 1 < expr.args.size(); i += 2) {
          LYNX_ASSIGN_OR_RETURN(const Value key, Evaluate(*expr.args[i], scope));
          LYNX_ASSIGN_OR_RETURN(Value value, Evaluate(*expr.args[i + 1], scope));
          if (key.is_string() && !key.as_text().given().empty()) dict.is_given = true;
          LYNX_RETURN_IF_ERROR(budget_.Spend(key.weight()));
          LYNX_RETURN_IF_ERROR(dict.SetKey(key, std::move(value)));
        }
        return MakeDict(std::move(dict));
      }
      case Kind::kAttribute: {
        LYNX_ASSIGN_OR_RETURN(const Value object, Evaluate(*expr.args[0], scope));
        return GetAttribute(object, expr.text);
      }
      case Kind::kItem: {
        LYNX_ASSIGN_OR_RETURN(const Value object, Evaluate(*expr.args[0], scope));
        LYNX_ASSIGN_OR_RETURN(const Value key, Evaluate(*expr.args[1], scope));
        return GetItem(object, key, budget_);
      }
      case Kind::kSpread:
        return Evaluate(*expr.args[0], scope);
      case Kind::kSlice:
        return Slice(expr, scope);
      case Kind::kCall:
        return Call(expr, scope);
      case Kind::kFilter: {
        LYNX_ASSIGN_OR_RETURN(const Value subject, Evaluate(*expr.args[0], scope));
        LYNX_ASSIGN_OR_RETURN(const Arguments args, EvaluateArguments(expr, scope));
        return ApplyFilter(expr.text, subject, args, budget_);
      }
      case Kind::kTest: {
        LYNX_ASSIGN_OR_RETURN(const Value subject, Evaluate(*expr.args[0], scope));
        LYNX_ASSIGN_OR_RETURN(const Arguments args, EvaluateArguments(expr, scope));
        LYNX_ASSIGN_OR_RETURN(const bool holds, ApplyTest(expr.text, subject, args, budget_));
        return Value(holds);
      }
      case Kind::kNegate:
      case Kind::kPlus: {
        LYNX_ASSIGN_OR_RETURN(const Value operand, Evaluate(*expr.args[0], scope));
        if (operand.is_undefined()) return operand.UndefinedError();
        if (const BigInteger* big = operand.big_integer()) {
          if (expr.kind == Kind::kPlus) return operand;
          return MakeInteger(big->digits[0] == '-' ? big->digits.substr(1) : "-" + big->digits);
        }
        if (!operand.is_number()) return Bad("a sign needs a number");
        if (operand.is_float()) {
          return Value(expr.kind == Kind::kNegate ? -operand.as_double() : operand.as_double());
        }
        return Arithmetic(expr.kind == Kind::kNegate ? "-" : "+", Value(int64_t{0}), operand);
      }
      case Kind::kNot: {
        LYNX_ASSIGN_OR_RETURN(const Value operand, Evaluate(*expr.args[0], scope));
        return Value(!Truthy(operand));
      }
      case Kind::kAnd:
      case Kind::kOr: {
        LYNX_ASSIGN_OR_RETURN(Value left, Evaluate(*expr.args[0], scope));
        if (Truthy(left) == (expr.kind == Kind::kOr)) return left;
        return Evaluate(*expr.args[1], scope);
      }
      case Kind::kConditional: {
        LYNX_ASSIGN_OR_RETURN(const Value condition, Evaluate(*expr.args[1], scope));
        if (Truthy(condition)) return Evaluate(*expr.args[0], scope);
        if (expr.args[2] != nullptr) return Evaluate(*expr.args[2], scope);
        return Value::MakeUndefined("an inline if without else");
      }
      case Kind::kBinary: {
        LYNX_ASSIGN_OR_RETURN(const Value left, Evaluate(*expr.args[0], scope));
        LYNX_ASSIGN_OR_RETURN(const Value right, Evaluate(*expr.args[1], scope));
        return Arithmetic(expr.text, left, right);
      }
      case Kind::kCompare:
        return CompareChain(expr, scope);
      case Kind::kConcat: {
        Text out;
        for (const ExprPtr& part : expr.args) {
          LYNX_ASSIGN_OR_RETURN(const Value value, Evaluate(*part, scope));
          LYNX_RETURN_IF_ERROR(budget_.Spend(value.weight()));
          LYNX_ASSIGN_OR_RETURN(const Text text, Str(value));
          out.Append(text);
        }
        return Value(std::move(out));
      }
    }
    return Value();
  }

  absl::StatusOr<Value> CompareChain(const Expr& expr, const Scope& scope) {
    LYNX_ASSIGN_OR_RETURN(Value left, Evaluate(*expr.args[0], scope));
    for (size_t i = 0; i < expr.operators.size(); ++i) {
      LYNX_ASSIGN_OR_RETURN(Value right, Evaluate(*expr.args[i + 1], scope));
      const std::string& op = expr.operators[i];
      LYNX_RETURN_IF_ERROR(SpendCompare(left, right, budget_));
      bool holds = false;
      if (op == "==" || op == "!=") {
        holds = Equal(left, right) == (op == "==");
      } else if (op == "in" || op == "not in") {
        LYNX_ASSIGN_OR_RETURN(const bool found, Contains(right, left));
        holds = found == (op == "in");
      } else {
        LYNX_ASSIGN_OR_RETURN(const int order, Compare(left, right));
        holds = op == "<"    ? order < 0
                : op == "<=" ? order <= 0
                : op == ">"  ? order > 0
                             : order >= 0;
      }
      if (!holds) return Value(false);
      left = std::move(right);
    }
    return Value(true);
  }

  absl::StatusOr<Value> Repeat(const Value& value, int64_t count) {
    count = std::max<int64_t>(count, 0);
    const auto size = static_cast<int64_t>(value.is_string() ? value.as_string().size()
                                                             : value.list()->items.size() * 16);
    int64_t total = 0;
    if (__builtin_mul_overflow(size, count, &total)) {
      total = std::numeric_limits<int64_t>::max() / 2;
    }
    LYNX_RETURN_IF_ERROR(budget_.Spend(total));
    if (size == 0) return value;
    if (value.is_string()) {
      Text out;
      for (int64_t i = 0; i < count; ++i) out.Append(value.as_text());
      return Value(std::move(out));
    }
    std::vector<Value> items;
    for (int64_t i = 0; i < count; ++i) {
      items.insert(items.end(), value.list()->items.begin(), value.list()->items.end());
    }
    return MakeList(std::move(items), value.list()->kind);
  }

  absl::StatusOr<Value> Arithmetic(const std::string& op, const Value& left, const Value& right) {
    if (left.is_undefined()) return left.UndefinedError();
    if (right.is_undefined()) return right.UndefinedError();
    if (op == "+" && left.is_string() && right.is_string()) {
      LYNX_RETURN_IF_ERROR(
          budget_.Spend(static_cast<int64_t>(left.as_string().size() + right.as_string().size())));
      Text sum = left.as_text();
      sum.Append(right.as_text());
      return Value(std::move(sum));
    }
    if (op == "+" && left.list() != nullptr && right.list() != nullptr &&
        left.list()->kind == right.list()->kind && IsPlain(*left.list())) {
      std::vector<Value> items = left.list()->items;
      items.insert(items.end(), right.list()->items.begin(), right.list()->items.end());
      LYNX_RETURN_IF_ERROR(budget_.Spend(static_cast<int64_t>(items.size()) * 16));
      return MakeList(std::move(items), left.list()->kind);
    }
    if (op == "%" && left.is_string()) {
      LYNX_ASSIGN_OR_RETURN(Text text, FormatPercent(left.as_text(), right, budget_));
      return Value(std::move(text));
    }
    if (op == "*") {
      const auto repeatable = [](const Value& v) {
        return v.is_string() || (v.list() != nullptr && IsPlain(*v.list()));
      };
      if (repeatable(left) && right.is_integral()) return Repeat(left, right.as_int());
      if (left.is_integral() && repeatable(right)) return Repeat(right, left.as_int());
    }
    if (!left.is_number() || !right.is_number()) {
      return Bad(absl::StrCat("'", op, "' does not work for a ", left.TypeName(), " and a ",
                              right.TypeName()));
    }
    const bool divides = op == "/" || op == "//" || op == "%";
    if (divides && right.as_double() == 0) return Bad("division by zero");
    if (left.is_float() || right.is_float() || op == "/" || (op == "**" && right.as_int() < 0)) {
      return Value(Floating(op, left.as_double(), right.as_double()));
    }
    return Integral(op, left.as_int(), right.as_int());
  }

  static double Floating(const std::string& op, double a, double b) {
    if (op == "+") return a + b;
    if (op == "-") return a - b;
    if (op == "*") return a * b;
    if (op == "/") return a / b;
    if (op == "//") return std::floor(a / b);
    if (op == "**") return std::pow(a, b);
    const double rest = std::fmod(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
  }

  static absl::StatusOr<Value> Integral(const std::string& op, int64_t a, int64_t b) {
    int64_t result = 0;
    bool overflow = false;
    if (op == "+") {
      overflow = __builtin_add_overflow(a, b, &result);
    } else if (op == "-") {
      overflow = __builtin_sub_overflow(a, b, &result);
    } else if (op == "*") {
      overflow = __builtin_mul_overflow(a, b, &result);
    } else if (op == "**") {
      result = 1;
      // Past 64 steps any base but 0, 1 and -1 has overflowed.
      const int64_t steps = a >= -1 && a <= 1 ? std::min<int64_t>(b, 2 + b % 2) : b;
      for (int64_t i = 0; i < steps && !overflow; ++i) {
        overflow = __builtin_mul_overflow(result, a, &result);
      }
    } else if (b == -1) {
      if (op == "//") overflow = __builtin_sub_overflow(int64_t{0}, a, &result);
    } else {
      // Python rounds down, C++ towards zero.
      const int64_t rest = a % b;
      const bool adjust = rest != 0 && (rest < 0) != (b < 0);
      result = op == "%" ? (adjust ? rest + b : rest) : a / b - (adjust ? 1 : 0);
    }
    if (overflow) return Bad("a number is too large");
    return Value(result);
  }

  absl::StatusOr<Value> Slice(const Expr& expr, const Scope& scope) {
    LYNX_ASSIGN_OR_RETURN(const Value object, Evaluate(*expr.args[0], scope));
    std::array<std::optional<int64_t>, 3> bounds;
    for (size_t i = 0; i < bounds.size(); ++i) {
      if (expr.args[i + 1] == nullptr) continue;
      LYNX_ASSIGN_OR_RETURN(const Value bound, Evaluate(*expr.args[i + 1], scope));
      if (bound.is_none()) continue;
      if (!bound.is_integral()) return Bad("slice bounds must be integers");
      bounds[i] = bound.as_int();
    }
    const int64_t step = bounds[2].value_or(1);
    if (step == 0) return Bad("the step of a slice is zero");
    if (object.is_undefined()) return object.UndefinedError();
    std::vector<std::string_view> characters;
    int64_t count = 0;
    if (object.is_string()) {
      LYNX_RETURN_IF_ERROR(budget_.Spend(object.weight() * 4));
      characters = CodePoints(object.as_string());
      count = static_cast<int64_t>(characters.size());
    } else if (object.list() != nullptr && object.list()->has_indices()) {
      count = static_cast<int64_t>(object.list()->items.size());
    } else if (expr.args[0]->kind == Expr::Kind::kConstant) {
      // The reference looks such a thing up beforehand, and then as it does any subscript.
      return Value::MakeUndefined(absl::StrCat("a slice of a ", object.TypeName()));
    } else {
      return Bad(absl::StrCat("a ", object.TypeName(), " cannot be sliced"));
    }
    const auto clamp = [&](std::optional<int64_t> bound, int64_t absent) {
      if (!bound.has_value()) return absent;
      int64_t value = *bound;
      if (value < 0) value = value < -count ? -1 : value + count;
      return step > 0 ? std::clamp<int64_t>(value, 0, count)
                      : std::clamp<int64_t>(value, -1, count - 1);
    };
    const int64_t begin = clamp(bounds[0], step > 0 ? 0 : count - 1);
    const int64_t end = clamp(bounds[1], step > 0 ? count : -1);
    Text text;
    std::vector<Value> items;
    for (int64_t i = begin; step > 0 ? i < end : i > end;) {
      if (object.is_string()) {
        const std::string_view character = characters[static_cast<size_t>(i)];
        const auto at = static_cast<size_t>(character.data() - object.as_string().data());
        text.AppendPart(object.as_text(), at, at + character.size());
      } else {
        items.push_back(object.list()->items[static_cast<size_t>(i)]);
      }
      if (__builtin_add_overflow(i, step, &i)) break;
    }
    LYNX_RETURN_IF_ERROR(budget_.Spend(static_cast<int64_t>(items.size())));
    if (object.is_string()) return Value(std::move(text));
    if (object.list()->kind == List::Kind::kRange) {
      const Range& range = object.list()->range;
      Range sliced;
      if (__builtin_mul_overflow(range.step, step, &sliced.step) ||
          __builtin_mul_overflow(begin, range.step, &sliced.begin) ||
          __builtin_add_overflow(sliced.begin, range.begin, &sliced.begin) ||
          __builtin_mul_overflow(end, range.step, &sliced.end) ||
          __builtin_add_overflow(sliced.end, range.begin, &sliced.end)) {
        return Bad("a range reaches too far");
      }
      return MakeRange(sliced, std::move(items));
    }
    return MakeList(std::move(items), object.list()->kind);
  }

  // ---- Calls ----

  absl::StatusOr<Value> Call(const Expr& expr, const Scope& scope) {
    LYNX_ASSIGN_OR_RETURN(const Value callee, Evaluate(*expr.args[0], scope));
    LYNX_ASSIGN_OR_RETURN(const Arguments args, EvaluateArguments(expr, scope));
    return CallValue(callee, args);
  }

  // Runs a recursive loop again, on other items.
  absl::StatusOr<Value> CallLoop(const Loop& loop, const Arguments& args) {
    if (loop.statement == nullptr) return Bad("only a recursive loop can be called, while it runs");
    if (args.positional.size() != 1 || !args.named.empty()) return Bad("loop() takes one value");
    depth_ += kCallDepth;
    Text out;
    const absl::Status status =
        RunLoop(*loop.statement, args.positional[0], loop.depth + 1, *loop.scope, out).status();
    depth_ -= kCallDepth;
    LYNX_RETURN_IF_ERROR(status);
    return Value(std::move(out));
  }

  absl::StatusOr<Value> CallValue(const Value& callee, const Arguments& args) {
    if (const Loop* loop = callee.loop()) return CallLoop(*loop, args);
    const Callable* callable = callee.callable();
    if (callable == nullptr) {
      if (callee.is_undefined()) return callee.UndefinedError();
      return Bad(absl::StrCat("a ", callee.TypeName(), " cannot be called"));
    }
    switch (callable->kind) {
      case Callable::Kind::kMethod:
        return CallMethod(callable->self, callable->name, args, budget_);
      case Callable::Kind::kMacro:
        return CallMacro(*callable, args);
      case Callable::Kind::kFunction:
        return CallFunction(callable->name, args);
    }
    return Value();
  }

  absl::StatusOr<Value> CallMacro(const Callable& callable, const Arguments& args) {
    const Macro& macro = *callable.macro;
    if (args.positional.size() > macro.parameters.size()) {
      return Bad("macro '" + macro.name + "' takes at most " +
                 std::to_string(macro.parameters.size()) + " arguments");
    }
    Scope outer;
    outer.parent = top_;
    if (callable.closure != nullptr) {
      LYNX_RETURN_IF_ERROR(
          budget_.Spend(kStepCost * static_cast<int64_t>(callable.closure->size())));
      outer.variables = *callable.closure;
    }
    Scope scope;
    scope.parent = &outer;
    if (macro.takes_caller) scope.Set(kCaller, Value::MakeUndefined("'caller'"));
    std::vector<std::optional<Value>> given(macro.parameters.size());
    for (size_t i = 0; i < args.positional.size(); ++i) given[i] = args.positional[i];
    for (const auto& argument : args.named) {
      const auto parameter =
          std::find_if(macro.parameters.begin(), macro.parameters.end(),
                       [&](const Macro::Parameter& p) { return p.name == argument.first; });
      if (parameter == macro.parameters.end() && argument.first == kCaller && macro.takes_caller) {
        scope.Set(kCaller, argument.second);
        continue;
      }
      if (parameter == macro.parameters.end()) {
        return Bad("macro '" + macro.name + "' has no argument '" + argument.first + "'");
      }
      given[static_cast<size_t>(parameter - macro.parameters.begin())] = argument.second;
    }
    for (size_t i = 0; i < given.size(); ++i) {
      const Macro::Parameter& parameter = macro.parameters[i];
      Value value = Value::MakeUndefined("'" + parameter.name + "'");
      if (given[i].has_value()) {
        value = *std::move(given[i]);
      } else if (parameter.fallback != nullptr) {
        LYNX_ASSIGN_OR_RETURN(value, Evaluate(*parameter.fallback, scope));
      }
      scope.Set(parameter.name, std::move(value));
    }
    // A macro's statements evaluate on top of the caller's stack.
    depth_ += kCallDepth;
    Text out;
    const absl::Status status = Execute(macro.body, scope, out).status();
    depth_ -= kCallDepth;
    LYNX_RETURN_IF_ERROR(status);
    return Value(std::move(out));
  }

  absl::StatusOr<Value> CallFunction(const std::string& name, const Arguments& args) {
    if (name == "namespace" || name == "dict") {
      Dict dict;
      for (const Value& base : args.positional) {
        if (base.dict() == nullptr) return Bad(name + "() takes mappings and named values");
        dict.SetAll(*base.dict());
        dict.is_given = dict.is_given || base.dict()->is_given;
      }
      for (const auto& [key, value] : args.named) dict.Set(key, value);
      LYNX_RETURN_IF_ERROR(budget_.Spend(static_cast<int64_t>(dict.items.size()) * 32));
      if (name == "dict") return MakeDict(std::move(dict));
      if (namespaces_.size() >= kMaxNamespaces) {
        return absl::OutOfRangeError("the chat template makes too many namespaces");
      }
      auto ns = std::make_shared<Namespace>();
      ns->fields = std::move(dict);
      namespaces_.push_back(ns);
      return Value(ns);
    }
    if (!args.named.empty()) return Bad(name + "() takes no named arguments");
    if (name == "range") return CallRange(args);
    if (args.positional.size() != 1 || !args.positional[0].is_string()) {
      return Bad(name + "() takes one string");
    }
    if (name == "raise_exception") {
      located_ = true;
      return Bad(args.positional[0].as_string());
    }
    return FormatNow(args.positional[0].as_string());
  }

  absl::StatusOr<Value> CallRange(const Arguments& args) {
    std::vector<int64_t> bounds;
    for (const Value& value : args.positional) {
      if (!value.is_integral()) return Bad("range() takes integers");
      bounds.push_back(value.as_int());
    }
    if (bounds.empty() || bounds.size() > 3) return Bad("range() takes one to three integers");
    const int64_t begin = bounds.size() > 1 ? bounds[0] : 0;
    const int64_t end = bounds.size() > 1 ? bounds[1] : bounds[0];
    const int64_t step = bounds.size() > 2 ? bounds[2] : 1;
    if (step == 0) return Bad("the step of range() is zero");
    std::vector<Value> items;
    for (int64_t i = begin; step > 0 ? i < end : i > end;) {
      LYNX_RETURN_IF_ERROR(budget_.Spend(64));
      items.emplace_back(i);
      if (__builtin_add_overflow(i, step, &i)) break;
    }
    return MakeRange({begin, end, step}, std::move(items));
  }

  // Like Python's datetime.now().strftime(), whose time zone has neither name nor offset.
  absl::StatusOr<Value> FormatNow(const std::string& given) const {
    if (given.size() > 256) return Bad("the format of strftime_now() is too long");
    const std::time_t seconds = absl::ToTimeT(options_.now);
    const int64_t micros = absl::ToInt64Microseconds(options_.now - absl::FromTimeT(seconds));
    std::string format;
    for (size_t i = 0; i < given.size(); ++i) {
      const std::string_view two = std::string_view(given).substr(i, 2);
      if (two == "%f") {
        absl::StrAppendFormat(&format, "%06d", micros);
      } else if (two != "%z" && two != "%Z") {
        absl::StrAppend(&format, std::string(two[0] == '%' ? two : two.substr(0, 1)));
      }
      if (two[0] == '%') ++i;
    }
    std::tm utc{};
    gmtime_r(&seconds, &utc);
    std::array<char, 4096> buffer;
    // A leading character tells an empty result from a failure.
    const size_t length = std::strftime(buffer.data(), buffer.size(), (" " + format).c_str(), &utc);
    if (length == 0) return Bad("the format of strftime_now() is malformed");
    return Value(std::string(buffer.data() + 1, length - 1));
  }

  const RenderOptions& options_;
  Budget budget_;
  const Scope* top_ = nullptr;
  int depth_ = 0;
  bool located_ = false;  // An error already says where it happened.
  std::vector<std::shared_ptr<Namespace>> namespaces_;
};

}  // namespace

absl::StatusOr<Text> Render(const Body& body, std::vector<std::pair<std::string, Value>> variables,
                            const RenderOptions& options) {
  return Interpreter(options).Run(body, std::move(variables));
}

}  // namespace lynx::text::jinja
