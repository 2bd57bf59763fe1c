#include "common/text/internal/jinja/parser.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/text/internal/jinja/functions.h"
#include "common/text/internal/jinja/lexer.h"

namespace lynx::text::jinja {
namespace {

using Kind = Token::Kind;

// Evaluating and destroying a tree recurse.
constexpr int kMaxExpressionDepth = 200;
constexpr int kMaxBlockDepth = 64;

bool Among(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {
    // A macro may be called above its definition, from inside another one.
    for (size_t i = 0; i + 2 < tokens_.size(); ++i) {
      if (tokens_[i].kind == Kind::kBlockBegin && tokens_[i + 1].text == "macro") {
        assigned_.insert(tokens_[i + 2].text);
      }
    }
  }

  absl::StatusOr<Body> Run() {
    LYNX_ASSIGN_OR_RETURN(Body body, ParseBody({}));
    return body;
  }

 private:
  const Token& Now() const { return tokens_[at_]; }
  const Token& Next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  void Advance() {
    if (Now().kind != Kind::kEnd) ++at_;
  }
  bool IsOperator(std::string_view op) const {
    return Now().kind == Kind::kOperator && Now().text == op;
  }
  bool IsName(std::string_view name) const {
    return Now().kind == Kind::kName && Now().text == name;
  }
  bool Accept(std::string_view op) {
    if (!IsOperator(op)) return false;
    Advance();
    return true;
  }
  bool AcceptName(std::string_view name) {
    if (!IsName(name)) return false;
    Advance();
    return true;
  }
  absl::Status Error(std::string_view message) const { return TemplateError(Now().place, message); }
  std::string Shown() const {
    switch (Now().kind) {
      case Kind::kEnd:
        return "the end of the template";
      case Kind::kVariableEnd:
        return "'}}'";
      case Kind::kBlockEnd:
        return "'%}'";
      default:
        return "'" + Now().text + "'";
    }
  }
  absl::Status Expect(std::string_view op) {
    if (Accept(op)) return absl::OkStatus();
    return Error(absl::StrCat("expected '", std::string(op), "', not ", Shown()));
  }
  absl::StatusOr<std::string> ExpectName() {
    if (Now().kind != Kind::kName) return Error("expected a name, not " + Shown());
    std::string name = Now().text;
    Advance();
    return name;
  }
  absl::Status ExpectBlockEnd() {
    if (Now().kind != Kind::kBlockEnd) return Error("expected '%}', not " + Shown());
    Advance();
    return absl::OkStatus();
  }

  // ---- Blocks ----

  // Statements up to a tag named in `ends`, whose name is left to be read; or, with none, to the
  // end of the template.
  absl::StatusOr<Body> ParseBody(std::initializer_list<std::string_view> ends) {
    if (++block_depth_ > kMaxBlockDepth) return Error("blocks are nested too deep");
    Body body;
    for (;;) {
      const Token& token = Now();
      if (token.kind == Kind::kEnd) {
        if (ends.size() > 0) {
          return Error(absl::StrCat("a block is not closed: '", std::string(*(ends.end() - 1)),
                                    "' is missing"));
        }
        break;
      }
      auto statement = std::make_unique<Statement>();
      statement->place = token.place;
      if (token.kind == Kind::kData) {
        statement->kind = Statement::Kind::kText;
        statement->text = Text(token.text);
        Advance();
      } else if (token.kind == Kind::kVariableBegin) {
        Advance();
        statement->kind = Statement::Kind::kPrint;
        LYNX_ASSIGN_OR_RETURN(statement->value, ParseTuple());
        if (Now().kind != Kind::kVariableEnd) return Error("expected '}}', not " + Shown());
        Advance();
      } else {
        Advance();  // kBlockBegin
        if (Now().kind != Kind::kName) return Error("expected a tag name, not " + Shown());
        if (Among(Now().text, ends)) break;
        LYNX_RETURN_IF_ERROR(ParseTag(*statement));
      }
      body.push_back(std::move(statement));
    }
    --block_depth_;
    return body;
  }

  absl::Status ParseTag(Statement& out) {
    const std::string tag = Now().text;
    if (tag == "for") return ParseFor(out);
    if (tag == "if") return ParseIf(out);
    if (tag == "set") return ParseSet(out);
    if (tag == "macro") return ParseMacro(out);
    if (tag == "filter") return ParseFilterBlock(out);
    if (tag == "with") return ParseWith(out);
    if (tag == "call") return ParseCallBlock(out);
    if (tag == "generation") {
      Advance();
      out.kind = Statement::Kind::kScope;
      LYNX_RETURN_IF_ERROR(ExpectBlockEnd());
      LYNX_ASSIGN_OR_RETURN(out.body, ParseBody({"endgeneration"}));
      Advance();
      return ExpectBlockEnd();
    }
    if (tag == "break" || tag == "continue") {
      if (loop_depth_ == 0) return Error("'" + tag + "' outside of a loop");
      Advance();
      out.kind = tag == "break" ? Statement::Kind::kBreak : Statement::Kind::kContinue;
      return ExpectBlockEnd();
    }
    return Error("tag '" + tag + "' is not supported");
  }

  absl::Status ParseFor(Statement& out) {
    Advance();
    out.kind = Statement::Kind::kFor;
    const std::set<std::string> outer = assigned_;
    LYNX_RETURN_IF_ERROR(ParseNames(out.target));
    if (!AcceptName("in")) return Error("expected 'in', not " + Shown());
    LYNX_ASSIGN_OR_RETURN(out.value, ParseTuple(/*with_conditional=*/false));
    if (AcceptName("if")) {
      LYNX_ASSIGN_OR_RETURN(out.condition, ParseExpression());
    }
    out.recursive = AcceptName("recursive");
    if (out.recursive) assigned_.insert("loop");
    LYNX_RETURN_IF_ERROR(ExpectBlockEnd());
    ++loop_depth_;
    LYNX_ASSIGN_OR_RETURN(out.body, ParseBody({"else", "endfor"}));
    --loop_depth_;
    if (AcceptName("else")) {
      LYNX_RETURN_IF_ERROR(ExpectBlockEnd());
      LYNX_ASSIGN_OR_RETURN(out.else_body, ParseBody({"endfor"}));
    }
    Advance();
    assigned_ = outer;
    return ExpectBlockEnd();
  }

  absl::Status ParseIf(Statement& out) {
    out.kind = Statement::Kind::kIf;
    for (;;) {
      const bool is_else = IsName("else");
      Advance();
      Branch branch;
      if (!is_else) {
        LYNX_ASSIGN_OR_RETURN(branch.condition, ParseTuple(/*with_conditional=*/false));
      }
      LYNX_RETURN_IF_ERROR(ExpectBlockEnd());
      if (is_else) {
        LYNX_ASSIGN_OR_RETURN(branch.body, ParseBody({"endif"}));
      } else {
        LYNX_ASSIGN_OR_RETURN(branch.body, ParseBody({"elif", "else", "endif"}));
      }
      out.branches.push_back(std::move(branch));
      if (AcceptName("endif")) return ExpectBlockEnd();
    }
  }

  absl::Status ParseSet(Statement& out) {
    Advance();
    LYNX_RETURN_IF_ERROR(ParseNames(out.target));
    if (!out.target.unpacks && Accept(".")) {
      LYNX_ASSIGN_OR_RETURN(out.target.field, ExpectName());
    }
    if (Accept("=")) {
      out.kind = Statement::Kind::kSet;
      LYNX_ASSIGN_OR_RETURN(out.value, ParseTuple());
      return ExpectBlockEnd();
    }
    out.kind = Statement::Kind::kSetBlock;
    LYNX_RETURN_IF_ERROR(ParseFiltersOfBlock(out));
    LYNX_RETURN_IF_ERROR(ExpectBlockEnd());
    LYNX_ASSIGN_OR_RETURN(out.body, ParseBody({"endset"}));
    Advance();
    return ExpectBlockEnd();
  }

  absl::Status ParseMacro(Statement& out) {
    // A macro sees the variables of the top level; one that could see those of a loop would have
    // to keep them.
    if (block_depth_ > 1 && (loop_depth_ > 0 || in_macro_)) {
      return Error("a macro inside a loop or a macro is not supported");
    }
    Advance();
    out.kind = Statement::Kind::kMacro;
    out.macro = std::make_unique<Macro>();
    LYNX_ASSIGN_OR_RETURN(out.macro->name, ExpectName());
    const std::set<std::string> outer = assigned_;
    assigned_.insert("caller");
    LYNX_RETURN_IF_ERROR(ParseParameters(*out.macro));
    LYNX_RETURN_IF_ERROR(ExpectBlockEnd());
    in_macro_ = true;
    names_caller_ = false;
    LYNX_ASSIGN_OR_RETURN(out.macro->body, ParseBody({"endmacro"}));
    out.macro->takes_caller = names_caller_;
    in_macro_ = false;
    Advance();
    if (Now().kind == Kind::kName) Advance();  // The macro's name may be repeated.
    assigned_ = outer;
    return ExpectBlockEnd();
  }

  absl::Status ParseParameters(Macro& macro) {
    LYNX_RETURN_IF_ERROR(Expect("("));
    while (!Accept(")")) {
      if (!macro.parameters.empty()) LYNX_RETURN_IF_ERROR(Expect(","));
      if (Accept(")")) break;
      Macro::Parameter parameter;
      LYNX_ASSIGN_OR_RETURN(parameter.name, ExpectName());
      assigned_.insert(parameter.name);
      if (Accept("=")) {
        LYNX_ASSIGN_OR_RETURN(parameter.fallback, ParseExpression());
      } else if (!macro.parameters.empty() && macro.parameters.back().fallback) {
        return Error("a parameter without default follows one with a default");
      }
      macro.parameters.push_back(std::move(parameter));
    }
    return absl::OkStatus();
  }

  absl::Status ParseCallBlock(Statement& out) {
    Advance();
    out.kind = Statement::Kind::kCall;
    out.macro = std::make_unique<Macro>();
    out.macro->name = "caller";
    const std::set<std::string> outer = assigned_;
    std::set<std::string> inner = assigned_;
    if (IsOperator("(")) {
      LYNX_RETURN_IF_ERROR(ParseParameters(*out.macro));
      inner = assigned_;
      assigned_ = outer;
    }
    LYNX_ASSIGN_OR_RETURN(out.value, ParseExpression());
    if (out.value->kind != Expr::Kind::kCall) return Error("expected a call");
    LYNX_RETURN_IF_ERROR(ExpectBlockEnd());
    assigned_ = std::move(inner);
    const int loops = loop_depth_;
    loop_depth_ = 0;  // A loop outside cannot be left from here.
    const bool names_caller = names_caller_;
    names_caller_ = false;
    LYNX_ASSIGN_OR_RETURN(out.macro->body, ParseBody({"endcall"}));
    out.macro->takes_caller = names_caller_;  // Its own, not that of a macro around it.
    names_caller_ = names_caller;
    loop_depth_ = loops;
    assigned_ = outer;
    Advance();
    return ExpectBlockEnd();
  }

  absl::Status ParseFilterBlock(Statement& out) {
    out.kind = Statement::Kind::kFilter;
    Advance();
    LYNX_ASSIGN_OR_RETURN(out.value, ParseFilter(Captured()));
    while (Accept("|")) {
      LYNX_ASSIGN_OR_RETURN(out.value, ParseFilter(std::move(out.value)));
    }
    LYNX_RETURN_IF_ERROR(ExpectBlockEnd());
    LYNX_ASSIGN_OR_RETURN(out.body, ParseBody({"endfilter"}));
    Advance();
    return ExpectBlockEnd();
  }

  absl::Status ParseWith(Statement& out) {
    Advance();
    out.kind = Statement::Kind::kWith;
    const std::set<std::string> outer = assigned_;
    while (Now().kind != Kind::kBlockEnd) {
      if (!out.assignments.empty()) LYNX_RETURN_IF_ERROR(Expect(","));
      LYNX_ASSIGN_OR_RETURN(std::string name, ExpectName());
      LYNX_RETURN_IF_ERROR(Expect("="));
      LYNX_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
      assigned_.insert(name);
      out.assignments.emplace_back(std::move(name), std::move(value));
    }
    LYNX_RETURN_IF_ERROR(ExpectBlockEnd());
    LYNX_ASSIGN_OR_RETURN(out.body, ParseBody({"endwith"}));
    Advance();
    assigned_ = outer;
    return ExpectBlockEnd();
  }

  absl::Status ParseFiltersOfBlock(Statement& out) {
    out.value = Captured();
    while (Accept("|")) {
      LYNX_ASSIGN_OR_RETURN(out.value, ParseFilter(std::move(out.value)));
    }
    return absl::OkStatus();
  }

  absl::Status ParseNames(Target& target) {
    const bool bracketed = Accept("(");
    do {
      if (target.unpacks && Now().kind != Kind::kName) break;  // A comma at the end.
      LYNX_ASSIGN_OR_RETURN(std::string name, ExpectName());
      if (Among(name, {"true", "false", "none", "True", "False", "None"})) {
        return Error("'" + name + "' cannot be assigned to");
      }
      assigned_.insert(name);
      target.names.push_back(std::move(name));
      if (IsOperator(",")) target.unpacks = true;
    } while (Accept(","));
    return bracketed ? Expect(")") : absl::OkStatus();
  }

  // ---- Expressions ----

  absl::StatusOr<ExprPtr> Make(Expr::Kind kind, Place place, std::vector<ExprPtr> args,
                               std::string text = "") {
    auto expr = std::make_unique<Expr>();
    expr->kind = kind;
    expr->place = place;
    expr->text = std::move(text);
    for (const ExprPtr& arg : args) {
      if (arg != nullptr) expr->depth = std::max(expr->depth, arg->depth + 1);
    }
    if (expr->depth > kMaxExpressionDepth) {
      return TemplateError(place, "an expression is nested too deep");
    }
    expr->args = std::move(args);
    return expr;
  }
  absl::StatusOr<ExprPtr> Make1(Expr::Kind kind, Place place, ExprPtr a, std::string text = "") {
    std::vector<ExprPtr> args;
    args.push_back(std::move(a));
    return Make(kind, place, std::move(args), std::move(text));
  }
  absl::StatusOr<ExprPtr> Make2(Expr::Kind kind, Place place, ExprPtr a, ExprPtr b,
                                std::string text = "") {
    std::vector<ExprPtr> args;
    args.push_back(std::move(a));
    args.push_back(std::move(b));
    return Make(kind, place, std::move(args), std::move(text));
  }
  ExprPtr Constant(Value value) const {
    auto expr = std::make_unique<Expr>();
    expr->kind = Expr::Kind::kConstant;
    expr->place = Now().place;
    expr->constant = std::move(value);
    return expr;
  }
  ExprPtr Captured() const {
    auto expr = std::make_unique<Expr>();
    expr->kind = Expr::Kind::kName;
    expr->place = Now().place;
    expr->text = kCapturedText;
    return expr;
  }

  // One expression, or several with commas between.
  absl::StatusOr<ExprPtr> ParseTuple(bool with_conditional = true) {
    const Place place = Now().place;
    const auto one = [&] { return with_conditional ? ParseExpression() : ParseOr(); };
    LYNX_ASSIGN_OR_RETURN(ExprPtr first, one());
    if (!IsOperator(",")) return first;
    std::vector<ExprPtr> items;
    items.push_back(std::move(first));
    while (Accept(",")) {
      if (Now().kind == Kind::kVariableEnd || Now().kind == Kind::kBlockEnd) break;
      LYNX_ASSIGN_OR_RETURN(ExprPtr item, one());
      items.push_back(std::move(item));
    }
    return Make(Expr::Kind::kTuple, place, std::move(items));
  }

  absl::StatusOr<ExprPtr> ParseExpression() {
    if (++recursion_ > kMaxExpressionDepth) return Error("an expression is nested too deep");
    LYNX_ASSIGN_OR_RETURN(ExprPtr expr, ParseOr());
    while (IsName("if")) {
      const Place place = Now().place;
      Advance();
      std::vector<ExprPtr> args;
      args.push_back(std::move(expr));
      LYNX_ASSIGN_OR_RETURN(ExprPtr condition, ParseOr());
      args.push_back(std::move(condition));
      ExprPtr otherwise;
      if (AcceptName("else")) {
        LYNX_ASSIGN_OR_RETURN(otherwise, ParseExpression());
      }
      args.push_back(std::move(otherwise));
      LYNX_ASSIGN_OR_RETURN(expr, Make(Expr::Kind::kConditional, place, std::move(args)));
    }
    --recursion_;
    return expr;
  }

  absl::StatusOr<ExprPtr> ParseOr() {
    LYNX_ASSIGN_OR_RETURN(ExprPtr left, ParseAnd());
    while (IsName("or")) {
      const Place place = Now().place;
      Advance();
      LYNX_ASSIGN_OR_RETURN(ExprPtr right, ParseAnd());
      LYNX_ASSIGN_OR_RETURN(left, Make2(Expr::Kind::kOr, place, std::move(left), std::move(right)));
    }
    return left;
  }

  absl::StatusOr<ExprPtr> ParseAnd() {
    LYNX_ASSIGN_OR_RETURN(ExprPtr left, ParseNot());
    while (IsName("and")) {
      const Place place = Now().place;
      Advance();
      LYNX_ASSIGN_OR_RETURN(ExprPtr right, ParseNot());
      LYNX_ASSIGN_OR_RETURN(left,
                            Make2(Expr::Kind::kAnd, place, std::move(left), std::move(right)));
    }
    return left;
  }

  absl::StatusOr<ExprPtr> ParseNot() {
    if (!IsName("not")) return ParseCompare();
    if (++recursion_ > kMaxExpressionDepth) return Error("an expression is nested too deep");
    const Place place = Now().place;
    Advance();
    LYNX_ASSIGN_OR_RETURN(ExprPtr operand, ParseNot());
    --recursion_;
    return Make1(Expr::Kind::kNot, place, std::move(operand));
  }

  absl::StatusOr<ExprPtr> ParseCompare() {
    const Place place = Now().place;
    LYNX_ASSIGN_OR_RETURN(ExprPtr first, ParseSum());
    std::vector<ExprPtr> operands;
    operands.push_back(std::move(first));
    std::vector<std::string> operators;
    for (;;) {
      if (Now().kind == Kind::kOperator && Among(Now().text, {"==", "!=", "<", "<=", ">", ">="})) {
        operators.push_back(Now().text);
        Advance();
      } else if (AcceptName("in")) {
        operators.push_back("in");
      } else if (IsName("not") && Next().kind == Kind::kName && Next().text == "in") {
        Advance();
        Advance();
        operators.push_back("not in");
      } else {
        break;
      }
      LYNX_ASSIGN_OR_RETURN(ExprPtr operand, ParseSum());
      operands.push_back(std::move(operand));
    }
    if (operators.empty()) return std::move(operands[0]);
    LYNX_ASSIGN_OR_RETURN(ExprPtr expr, Make(Expr::Kind::kCompare, place, std::move(operands)));
    expr->operators = std::move(operators);
    return expr;
  }

  absl::StatusOr<ExprPtr> ParseSum() {
    LYNX_ASSIGN_OR_RETURN(ExprPtr left, ParseConcat());
    while (IsOperator("+") || IsOperator("-")) {
      const Token op = Now();
      Advance();
      LYNX_ASSIGN_OR_RETURN(ExprPtr right, ParseConcat());
      LYNX_ASSIGN_OR_RETURN(
          left, Make2(Expr::Kind::kBinary, op.place, std::move(left), std::move(right), op.text));
    }
    return left;
  }

  absl::StatusOr<ExprPtr> ParseConcat() {
    const Place place = Now().place;
    LYNX_ASSIGN_OR_RETURN(ExprPtr first, ParseProduct());
    if (!IsOperator("~")) return first;
    std::vector<ExprPtr> parts;
    parts.push_back(std::move(first));
    while (Accept("~")) {
      LYNX_ASSIGN_OR_RETURN(ExprPtr part, ParseProduct());
      parts.push_back(std::move(part));
    }
    return Make(Expr::Kind::kConcat, place, std::move(parts));
  }

  absl::StatusOr<ExprPtr> ParseProduct() {
    LYNX_ASSIGN_OR_RETURN(ExprPtr left, ParsePower());
    while (Now().kind == Kind::kOperator && Among(Now().text, {"*", "/", "//", "%"})) {
      const Token op = Now();
      Advance();
      LYNX_ASSIGN_OR_RETURN(ExprPtr right, ParsePower());
      LYNX_ASSIGN_OR_RETURN(
          left, Make2(Expr::Kind::kBinary, op.place, std::move(left), std::move(right), op.text));
    }
    return left;
  }

  absl::StatusOr<ExprPtr> ParsePower() {
    LYNX_ASSIGN_OR_RETURN(ExprPtr left, ParseUnary(true));
    while (IsOperator("**")) {
      const Place place = Now().place;
      Advance();
      LYNX_ASSIGN_OR_RETURN(ExprPtr right, ParseUnary(true));
      LYNX_ASSIGN_OR_RETURN(
          left, Make2(Expr::Kind::kBinary, place, std::move(left), std::move(right), "**"));
    }
    return left;
  }

  absl::StatusOr<ExprPtr> ParseUnary(bool with_filters) {
    const Place place = Now().place;
    ExprPtr expr;
    if (IsOperator("-") || IsOperator("+")) {
      if (++recursion_ > kMaxExpressionDepth) return Error("an expression is nested too deep");
      const Expr::Kind kind = IsOperator("-") ? Expr::Kind::kNegate : Expr::Kind::kPlus;
      Advance();
      LYNX_ASSIGN_OR_RETURN(ExprPtr operand, ParseUnary(false));
      --recursion_;
      LYNX_ASSIGN_OR_RETURN(expr, Make1(kind, place, std::move(operand)));
    } else {
      LYNX_ASSIGN_OR_RETURN(expr, ParsePrimary());
    }
    LYNX_ASSIGN_OR_RETURN(expr, ParsePostfix(std::move(expr)));
    if (with_filters) {
      LYNX_ASSIGN_OR_RETURN(expr, ParseFiltersAndTests(std::move(expr)));
    }
    return expr;
  }

  absl::StatusOr<ExprPtr> ParsePrimary() {
    const Token token = Now();
    switch (token.kind) {
      case Kind::kName: {
        Advance();
        if (token.text == "true" || token.text == "True") return Constant(true);
        if (token.text == "false" || token.text == "False") return Constant(false);
        if (token.text == "none" || token.text == "None") return Constant(None{});
        if (token.text == "caller") names_caller_ = true;
        if (!assigned_.contains(token.text) && IsUnservedName(token.text)) {
          return TemplateError(token.place, "'" + token.text + "' is not supported");
        }
        return Make(Expr::Kind::kName, token.place, {}, token.text);
      }
      case Kind::kString: {
        std::string text;
        for (; Now().kind == Kind::kString; Advance()) text += Now().text;
        return Constant(std::move(text));
      }
      case Kind::kInteger: {
        absl::StatusOr<Value> value = MakeInteger(token.text);
        if (!value.ok()) return Error(std::string(value.status().message()));
        Advance();
        return Constant(*std::move(value));
      }
      case Kind::kFloat: {
        double value = 0;
        const char* end = token.text.data() + token.text.size();
        const auto result = std::from_chars(token.text.data(), end, value);
        if (result.ec != std::errc() || result.ptr != end) return Error("malformed number");
        Advance();
        return Constant(value);
      }
      default:
        break;
    }
    if (Accept("(")) {
      std::vector<ExprPtr> items;
      bool is_tuple = IsOperator(")");
      while (!Accept(")")) {
        LYNX_ASSIGN_OR_RETURN(ExprPtr item, ParseExpression());
        items.push_back(std::move(item));
        if (Accept(",")) {
          is_tuple = true;
        } else if (!IsOperator(")")) {
          return Error("expected ')', not " + Shown());
        }
      }
      if (!is_tuple) return std::move(items[0]);
      return Make(Expr::Kind::kTuple, token.place, std::move(items));
    }
    if (Accept("[")) {
      std::vector<ExprPtr> items;
      while (!Accept("]")) {
        if (!items.empty()) LYNX_RETURN_IF_ERROR(Expect(","));
        if (Accept("]")) break;
        LYNX_ASSIGN_OR_RETURN(ExprPtr item, ParseExpression());
        items.push_back(std::move(item));
      }
      return Make(Expr::Kind::kList, token.place, std::move(items));
    }
    if (Accept("{")) {
      std::vector<ExprPtr> items;
      while (!Accept("}")) {
        if (!items.empty()) LYNX_RETURN_IF_ERROR(Expect(","));
        if (Accept("}")) break;
        LYNX_ASSIGN_OR_RETURN(ExprPtr key, ParseExpression());
        LYNX_RETURN_IF_ERROR(Expect(":"));
        LYNX_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
        items.push_back(std::move(key));
        items.push_back(std::move(value));
      }
      return Make(Expr::Kind::kDict, token.place, std::move(items));
    }
    return Error("expected an expression, not " + Shown());
  }

  absl::StatusOr<ExprPtr> ParsePostfix(ExprPtr expr) {
    for (;;) {
      const Place place = Now().place;
      if (Accept(".")) {
        if (Now().kind == Kind::kInteger) {
          LYNX_ASSIGN_OR_RETURN(ExprPtr index, ParsePrimary());
          LYNX_ASSIGN_OR_RETURN(expr,
                                Make2(Expr::Kind::kItem, place, std::move(expr), std::move(index)));
          continue;
        }
        LYNX_ASSIGN_OR_RETURN(std::string name, ExpectName());
        LYNX_ASSIGN_OR_RETURN(
            expr, Make1(Expr::Kind::kAttribute, place, std::move(expr), std::move(name)));
      } else if (Accept("[")) {
        LYNX_ASSIGN_OR_RETURN(expr, ParseSubscript(std::move(expr), place));
      } else if (IsOperator("(")) {
        LYNX_ASSIGN_OR_RETURN(expr, ParseCall(std::move(expr)));
      } else {
        return expr;
      }
    }
  }

  absl::StatusOr<ExprPtr> ParseSubscript(ExprPtr object, Place place) {
    std::vector<ExprPtr> args;
    args.push_back(std::move(object));
    bool is_slice = false;
    for (int part = 0; part < 3; ++part) {
      ExprPtr index;
      if (!IsOperator(":") && !IsOperator("]")) {
        LYNX_ASSIGN_OR_RETURN(index, ParseExpression());
      }
      args.push_back(std::move(index));
      if (!IsOperator(":") || part == 2) break;
      Advance();
      is_slice = true;
    }
    if (!is_slice && args[1] != nullptr && IsOperator(",")) {
      std::vector<ExprPtr> items;
      items.push_back(std::move(args[1]));
      while (Accept(",")) {
        LYNX_ASSIGN_OR_RETURN(ExprPtr item, ParseExpression());
        items.push_back(std::move(item));
      }
      LYNX_ASSIGN_OR_RETURN(args[1], Make(Expr::Kind::kTuple, place, std::move(items)));
    }
    LYNX_RETURN_IF_ERROR(Expect("]"));
    if (is_slice) {
      args.resize(4);
      return Make(Expr::Kind::kSlice, place, std::move(args));
    }
    if (args[1] == nullptr) return TemplateError(place, "an index is missing");
    return Make(Expr::Kind::kItem, place, std::move(args));
  }

  absl::StatusOr<ExprPtr> ParseCall(ExprPtr callee) {
    if (callee->kind == Expr::Kind::kName) {
      if (!IsKnownFunction(callee->text) && !assigned_.contains(callee->text)) {
        return Error("function '" + callee->text + "' is not supported");
      }
    } else if (callee->kind == Expr::Kind::kAttribute) {
      if (!IsKnownMethod(callee->text)) {
        return Error("method '" + callee->text + "' is not supported");
      }
    }
    const Place place = Now().place;
    LYNX_ASSIGN_OR_RETURN(ExprPtr call, Make1(Expr::Kind::kCall, place, std::move(callee)));
    LYNX_RETURN_IF_ERROR(ParseArguments(*call));
    return call;
  }

  // What the reference gives a meaning, and is not here.
  bool IsUnservedName(std::string_view name) const {
    if (in_macro_ && Among(name, {"varargs", "kwargs"})) return true;
    return Among(name, {"lipsum", "cycler", "joiner", "self"});
  }

  // "(a, b, *c, name=d)" into `out`, which is a call if it has a '*'.
  absl::Status ParseArguments(Expr& out) {
    LYNX_RETURN_IF_ERROR(Expect("("));
    bool first = true;
    bool has_spread = false;
    while (!Accept(")")) {
      if (!first) LYNX_RETURN_IF_ERROR(Expect(","));
      first = false;
      if (Accept(")")) break;
      if (IsOperator("**") || (IsOperator("*") && out.kind != Expr::Kind::kCall)) {
        return Error("'" + Now().text + "' arguments are not supported");
      }
      const Place place = Now().place;
      const bool is_spread = Accept("*");
      const bool is_named = !is_spread && Now().kind == Kind::kName &&
                            Next().kind == Kind::kOperator && Next().text == "=";
      std::string name;
      if (is_named) {
        name = Now().text;
        Advance();
        Advance();
      } else if (!out.named.empty() || has_spread) {
        return Error("an argument without a name follows one with a name or a '*'");
      }
      LYNX_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
      if (is_spread) {
        has_spread = true;
        LYNX_ASSIGN_OR_RETURN(value, Make1(Expr::Kind::kSpread, place, std::move(value)));
      }
      out.depth = std::max(out.depth, value->depth + 1);
      if (is_named) {
        out.named.emplace_back(std::move(name), std::move(value));
      } else {
        out.args.push_back(std::move(value));
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<ExprPtr> ParseFiltersAndTests(ExprPtr expr) {
    for (;;) {
      if (Accept("|")) {
        LYNX_ASSIGN_OR_RETURN(expr, ParseFilter(std::move(expr)));
      } else if (AcceptName("is")) {
        LYNX_ASSIGN_OR_RETURN(expr, ParseTest(std::move(expr)));
      } else if (IsOperator("(")) {
        LYNX_ASSIGN_OR_RETURN(expr, ParseCall(std::move(expr)));
      } else {
        return expr;
      }
    }
  }

  // At the filter's name.
  absl::StatusOr<ExprPtr> ParseFilter(ExprPtr subject) {
    const Place place = Now().place;
    LYNX_ASSIGN_OR_RETURN(const std::string name, ExpectName());
    if (!IsKnownFilter(name)) {
      return TemplateError(place, "filter '" + name + "' is not supported");
    }
    LYNX_ASSIGN_OR_RETURN(ExprPtr expr,
                          Make1(Expr::Kind::kFilter, place, std::move(subject), name));
    if (IsOperator("(")) LYNX_RETURN_IF_ERROR(ParseArguments(*expr));
    for (const auto& argument : expr->named) {
      if (!FilterTakesNamed(name, argument.first)) {
        return TemplateError(
            place, "filter '" + name + "' with argument '" + argument.first + "' is not supported");
      }
    }
    // These name another filter or test, which must be known as well.
    const bool names_test = Among(name, {"select", "reject", "selectattr", "rejectattr"});
    const size_t position = name == "selectattr" || name == "rejectattr" ? 2 : 1;
    if ((names_test || name == "map") && expr->args.size() > position) {
      const Expr& argument = *expr->args[position];
      if (argument.kind != Expr::Kind::kConstant || !argument.constant.is_string()) {
        return TemplateError(place, "filter '" + name + "' needs a literal name");
      }
      const std::string& inner = argument.constant.as_string();
      if (names_test ? !IsKnownTest(inner) : !IsKnownFilter(inner)) {
        return TemplateError(place,
                             (names_test ? "test '" : "filter '") + inner + "' is not supported");
      }
    }
    return expr;
  }

  // Behind "is".
  absl::StatusOr<ExprPtr> ParseTest(ExprPtr subject) {
    const Place place = Now().place;
    const bool negated = AcceptName("not");
    LYNX_ASSIGN_OR_RETURN(const std::string name, ExpectName());
    if (!IsKnownTest(name)) return TemplateError(place, "test '" + name + "' is not supported");
    LYNX_ASSIGN_OR_RETURN(ExprPtr expr, Make1(Expr::Kind::kTest, place, std::move(subject), name));
    const Kind kind = Now().kind;
    if (IsOperator("(")) {
      LYNX_RETURN_IF_ERROR(ParseArguments(*expr));
    } else if ((kind == Kind::kName && !Among(Now().text, {"else", "or", "and"})) ||
               kind == Kind::kString || kind == Kind::kInteger || kind == Kind::kFloat ||
               IsOperator("[") || IsOperator("{")) {
      if (IsName("is")) return Error("tests cannot be chained with 'is'");
      LYNX_ASSIGN_OR_RETURN(ExprPtr argument, ParsePrimary());
      LYNX_ASSIGN_OR_RETURN(argument, ParsePostfix(std::move(argument)));
      expr->depth = std::max(expr->depth, argument->depth + 1);
      expr->args.push_back(std::move(argument));
    }
    if (!expr->named.empty()) return TemplateError(place, "tests take no named arguments");
    if (negated) return Make1(Expr::Kind::kNot, place, std::move(expr));
    return expr;
  }

  const std::vector<Token> tokens_;
  size_t at_ = 0;
  int block_depth_ = 0;
  int loop_depth_ = 0;
  int recursion_ = 0;
  bool in_macro_ = false;
  bool names_caller_ = false;       // The macro that is being read does.
  std::set<std::string> assigned_;  // Names that the template gives a value, so may be called.
};

}  // namespace

absl::StatusOr<Body> Parse(std::string_view source) {
  LYNX_ASSIGN_OR_RETURN(std::vector<Token> tokens, Lex(source));
  return Parser(std::move(tokens)).Run();
}

}  // namespace lynx::text::jinja
