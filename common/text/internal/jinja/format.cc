#include "common/text/internal/jinja/format.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"

namespace lynx::text::jinja {
namespace {

constexpr int64_t kMaxWidth = 1024;
constexpr int64_t kMaxPrecision = 64;

absl::Status Bad(std::string message) { return absl::InvalidArgumentError(std::move(message)); }

struct Conversion {
  bool left = false;
  bool zeros = false;
  std::string_view sign;  // Of what is not negative.
  int64_t width = 0;
  int64_t precision = -1;
  char type = 's';
};

class Formatter {
 public:
  Formatter(const Text& format, const Value& values, Budget& budget)
      : format_(format), values_(values), budget_(budget) {}

  absl::StatusOr<Text> Run() {
    const std::string& text = format_.bytes();
    Text out;
    while (at_ < text.size()) {
      const size_t percent = std::min(text.find('%', at_), text.size());
      out.AppendPart(format_, at_, percent);
      at_ = percent;
      if (at_ == text.size()) break;
      ++at_;
      LYNX_ASSIGN_OR_RETURN(const Text piece, One());
      out.Append(piece);
      LYNX_RETURN_IF_ERROR(budget_.Spend(static_cast<int64_t>(piece.size()) + kItemCost));
    }
    const bool is_tuple = values_.list() != nullptr && values_.list()->is_tuple();
    const size_t given = is_tuple ? values_.list()->items.size() : 1;
    if (values_.dict() == nullptr && used_ < given) {
      return Bad("not all arguments converted during string formatting");
    }
    return out;
  }

 private:
  char Now() const { return at_ < format_.size() ? format_.bytes()[at_] : '\0'; }

  absl::StatusOr<int64_t> Number(int64_t limit) {
    int64_t number = 0;
    for (; Now() >= '0' && Now() <= '9'; ++at_) {
      number = number * 10 + (Now() - '0');
      if (number > limit) return Bad(absl::StrCat("a width or precision is over ", limit));
    }
    return number;
  }

  absl::StatusOr<Value> NextValue(const std::optional<std::string>& name) {
    if (name.has_value()) {
      if (values_.dict() == nullptr) return Bad("format requires a mapping");
      const Value* found = values_.dict()->Find(*name);
      if (found == nullptr) return Bad("the mapping has no '" + *name + "'");
      return *found;
    }
    const bool is_tuple = values_.list() != nullptr && values_.list()->is_tuple();
    const size_t index = used_++;
    if (is_tuple && index < values_.list()->items.size()) return values_.list()->items[index];
    if (is_tuple || index > 0) return Bad("not enough arguments for format string");
    return values_;
  }

  // Behind a '%'.
  absl::StatusOr<Text> One() {
    std::optional<std::string> name;
    if (Now() == '(') {
      const size_t close = format_.bytes().find(')', at_);
      if (close == std::string::npos) return Bad("incomplete format key");
      name = format_.bytes().substr(at_ + 1, close - at_ - 1);
      at_ = close + 1;
    }
    Conversion conversion;
    for (;; ++at_) {
      if (Now() == '-') {
        conversion.left = true;
      } else if (Now() == '0') {
        conversion.zeros = true;
      } else if (Now() == '+') {
        conversion.sign = "+";
      } else if (Now() == ' ') {
        if (conversion.sign.empty()) conversion.sign = " ";
      } else {
        break;
      }
    }
    LYNX_ASSIGN_OR_RETURN(conversion.width, Number(kMaxWidth));
    if (Now() == '.') {
      ++at_;
      LYNX_ASSIGN_OR_RETURN(conversion.precision, Number(kMaxPrecision));
    }
    conversion.type = Now();
    ++at_;
    if (conversion.type == '%') return Text("%");
    if (conversion.type == '\0' ||
        std::string_view("disrxXofeg").find(conversion.type) == std::string_view::npos) {
      return Bad("unsupported format character in '" + format_.bytes() + "'");
    }
    LYNX_ASSIGN_OR_RETURN(const Value value, NextValue(name));
    if (conversion.type == 's' || conversion.type == 'r') return String(value, conversion);
    return Numeric(value, conversion);
  }

  absl::StatusOr<Text> String(const Value& value, const Conversion& conversion) {
    LYNX_RETURN_IF_ERROR(budget_.Spend(value.weight()));
    LYNX_ASSIGN_OR_RETURN(Text text, conversion.type == 's' ? Str(value) : Repr(value));
    if (conversion.precision >= 0) {
      const std::vector<std::string_view> all = CodePoints(text.bytes());
      const auto wanted = static_cast<size_t>(conversion.precision);
      size_t end = 0;
      for (size_t i = 0; i < std::min(wanted, all.size()); ++i) end += all[i].size();
      text = text.Part(0, end);
    }
    return Pad(text, conversion.width, " ", conversion.left ? -1 : 1, budget_);
  }

  absl::StatusOr<Text> Numeric(const Value& value, const Conversion& conversion) {
    if (value.is_undefined()) return value.UndefinedError();
    if (!value.is_number()) {
      return Bad(absl::StrCat("%", std::string(1, conversion.type), " needs a number, not a ",
                              value.TypeName()));
    }
    std::string digits;
    bool negative = false;
    const bool is_float = std::string_view("feg").find(conversion.type) != std::string_view::npos;
    if (is_float) {
      const double number = value.as_double();
      negative = std::signbit(number) && !std::isnan(number);
      const auto precision = static_cast<int>(conversion.precision < 0 ? 6 : conversion.precision);
      std::array<char, 512> buffer;
      const char* form = conversion.type == 'f' ? "%.*f" : conversion.type == 'e' ? "%.*e" : "%.*g";
      std::snprintf(buffer.data(), buffer.size(), form, precision, std::abs(number));
      digits = buffer.data();
    } else {
      if (value.is_float() && conversion.type != 'd' && conversion.type != 'i') {
        return Bad("an integer is required");
      }
      if (conversion.precision >= 0) return Bad("a precision of integers is not supported");
      if (value.is_float() && !(std::abs(value.as_double()) < 9e18)) {
        return Bad("a number is too large");
      }
      const int64_t number =
          value.is_float() ? static_cast<int64_t>(value.as_double()) : value.as_int();
      negative = number < 0;
      const uint64_t size =
          negative ? uint64_t{0} - static_cast<uint64_t>(number) : static_cast<uint64_t>(number);
      digits = conversion.type == 'x'   ? absl::StrFormat("%x", size)
               : conversion.type == 'X' ? absl::StrFormat("%X", size)
               : conversion.type == 'o' ? absl::StrFormat("%o", size)
                                        : absl::StrCat(size);
    }
    const std::string sign = negative ? "-" : std::string(conversion.sign);
    const auto width = static_cast<size_t>(conversion.width);
    if (conversion.zeros && !conversion.left && sign.size() + digits.size() < width) {
      digits.insert(0, width - sign.size() - digits.size(), '0');
    }
    return Pad(Text(sign + digits), conversion.width, " ", conversion.left ? -1 : 1, budget_);
  }

  const Text& format_;
  const Value& values_;
  Budget& budget_;
  size_t at_ = 0;
  size_t used_ = 0;
};

}  // namespace

absl::StatusOr<Text> FormatPercent(const Text& format, const Value& values, Budget& budget) {
  return Formatter(format, values, budget).Run();
}

absl::StatusOr<Text> Pad(const Text& text, int64_t width, std::string_view fill, int side,
                         Budget& budget) {
  const auto length = static_cast<int64_t>(CodePointCount(text.bytes()));
  const int64_t missing = std::max<int64_t>(0, width - length);
  LYNX_RETURN_IF_ERROR(budget.Spend(length));
  LYNX_RETURN_IF_ERROR(budget.Spend(std::min(missing, INT64_MAX / 8) * 4));
  const int64_t before = side > 0 ? missing : side < 0 ? 0 : missing / 2 + (missing & width & 1);
  Text out;
  for (int64_t i = 0; i < before; ++i) out.Append(fill);
  out.Append(text);
  for (int64_t i = before; i < missing; ++i) out.Append(fill);
  return out;
}

}  // namespace lynx::text::jinja
