#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/text/internal/jinja/place.h"
#include "common/text/internal/jinja/value.h"

namespace lynx::text::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  enum class Kind {
    kConstant,
    kName,       // text
    kList,       // args
    kTuple,      // args
    kDict,       // args: key, value, key, value, ...
    kAttribute,  // args[0].text
    kItem,       // args[0][args[1]]
    kSlice,      // args[0][args[1]:args[2]:args[3]], where any of the three may be null
    kCall,       // args[0](args[1..], named)
    kFilter,     // args[0]|text(args[1..], named)
    kTest,       // args[0] is text(args[1..], named)
    kNegate,
    kPlus,
    kNot,
    kAnd,
    kOr,
    kConditional,  // args[0] if args[1] else args[2] (may be null)
    kBinary,       // args[0] text args[1], arithmetic
    kCompare,      // args[0] operators[0] args[1] operators[1] args[2] ...
    kConcat,       // args joined as strings
    kSpread,       // *args[0], an argument of a call
  };

  Kind kind;
  Place place;
  int depth = 1;
  std::string text;
  Value constant;
  std::vector<ExprPtr> args;
  std::vector<std::pair<std::string, ExprPtr>> named;
  std::vector<std::string> operators;
};

// What an assignment writes to: one name, `namespace.field`, or several names to unpack into.
struct Target {
  std::vector<std::string> names;
  bool unpacks = false;
  std::string field;  // Of the namespace names[0].
};

struct Statement;
using Body = std::vector<std::unique_ptr<Statement>>;

struct Branch {
  ExprPtr condition;  // Null: else.
  Body body;
};

struct Macro {
  std::string name;
  struct Parameter {
    std::string name;
    ExprPtr fallback;  // Null: undefined when not given.
  };
  std::vector<Parameter> parameters;
  bool takes_caller = false;  // Its body names `caller`.
  Body body;
};

struct Statement {
  enum class Kind {
    kText,      // text
    kPrint,     // value
    kIf,        // branches
    kFor,       // for target in value if condition: body, else: else_body
    kSet,       // target = value
    kSetBlock,  // target = what body prints, through the filters of value
    kMacro,     // macro
    kFilter,    // what body prints, through the filters of value
    kCall,      // value (a call), whose `caller` is macro
    kWith,      // assignments, then body in a scope of its own
    kScope,     // body (a generation block)
    kBreak,
    kContinue,
  };

  Kind kind;
  Place place;
  Text text;
  ExprPtr value;  // Of kSetBlock and kFilter: filters around a placeholder name, or null.
  ExprPtr condition;
  bool recursive = false;
  Target target;
  std::vector<Branch> branches;
  std::vector<std::pair<std::string, ExprPtr>> assignments;
  Body body;
  Body else_body;
  std::unique_ptr<Macro> macro;
};

// The name under which kSetBlock and kFilter hand their text to their filters; no template can
// write it.
inline constexpr char kCapturedText[] = "<text>";

}  // namespace lynx::text::jinja
