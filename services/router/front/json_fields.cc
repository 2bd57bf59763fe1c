#include "services/router/front/json_fields.h"

#include "absl/strings/str_cat.h"
#include "services/router/front/api_error.h"

namespace lynx::router {
namespace {

const char* TypeName(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::boolean:
      return "a boolean";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::object:
      return "an object";
    default:
      return "a number";
  }
}

// Goes through the text of a JSON array or object.
class Cursor {
 public:
  // Behind the opening bracket.
  explicit Cursor(std::string_view text) : text_(text), at_(text.find_first_of("[{") + 1) {}

  // Whether another element follows; stands on it then.
  bool Next() {
    SkipSpace();
    if (at_ < text_.size() && text_[at_] == ',') {
      ++at_;
      SkipSpace();
    }
    return at_ < text_.size() && text_[at_] != ']' && text_[at_] != '}';
  }
  // The value here, without white space around it; stands behind it then.
  std::string_view Value() {
    SkipSpace();
    const size_t begin = at_;
    size_t depth = 0;
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '"') {
        SkipString();
        if (depth == 0) break;
        --at_;
      } else if (c == '[' || c == '{') {
        ++depth;
      } else if (c == ']' || c == '}') {
        if (depth == 0) break;
        if (--depth == 0) {
          ++at_;
          break;
        }
      } else if (depth == 0 && (c == ',' || c == ':' || IsSpace(c))) {
        break;
      }
    }
    return text_.substr(begin, at_ - begin);
  }
  void SkipColon() {
    SkipSpace();
    ++at_;
  }

 private:
  static bool IsSpace(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
  void SkipSpace() {
    while (at_ < text_.size() && IsSpace(text_[at_])) ++at_;
  }
  void SkipString() {
    for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      if (text_[at_] == '\\') ++at_;
    }
    ++at_;
  }

  std::string_view text_;
  size_t at_;
};

// What a JSON string says.
std::string Unquoted(std::string_view quoted) {
  if (quoted.find('\\') == std::string_view::npos) {
    return std::string(quoted.substr(1, quoted.size() - 2));
  }
  return Json::parse(quoted.begin(), quoted.end()).get<std::string>();
}

}  // namespace

const Json* Find(const Json& object, const char* name) {
  const auto it = object.find(name);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

absl::Status TypeError(std::string_view param, std::string_view wanted, const Json& got) {
  const char* what =
      got.is_number_float() && wanted == "an integer" ? "a fraction or too large" : TypeName(got);
  return FieldError(param, absl::StrCat("'", std::string(param), "' must be ", std::string(wanted),
                                        ", but it is ", what));
}

std::vector<RawMember> RawMembers(std::string_view object) {
  std::vector<RawMember> members;
  for (Cursor cursor(object); cursor.Next();) {
    RawMember& member = members.emplace_back();
    member.name = Unquoted(cursor.Value());
    cursor.SkipColon();
    member.value = cursor.Value();
  }
  return members;
}

std::vector<std::string_view> RawElements(std::string_view array) {
  std::vector<std::string_view> elements;
  for (Cursor cursor(array); cursor.Next();) elements.push_back(cursor.Value());
  return elements;
}

std::string_view RawValue(std::string_view object, std::string_view name) {
  std::string_view value;
  for (const RawMember& member : RawMembers(object)) {
    if (member.name == name) value = member.value;
  }
  return value;
}

}  // namespace lynx::router
