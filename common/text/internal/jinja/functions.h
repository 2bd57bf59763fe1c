#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/text/internal/jinja/value.h"

// The filters, tests and methods that templates can use.
namespace lynx::text::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// How much a rendering may do: time, and memory through the bytes it makes.
class Budget {
 public:
  explicit Budget(int64_t units) : left_(units) {}
  // OutOfRange once it is used up.
  absl::Status Spend(int64_t units) {
    left_ -= units;
    if (left_ >= 0) return absl::OkStatus();
    return absl::OutOfRangeError("the chat template does too much work for this input");
  }

 private:
  int64_t left_;
};

// Pays for comparing two values.
absl::Status SpendCompare(const Value& a, const Value& b, Budget& budget);

// What a parser needs to know. For filters, `named` names must be parameters too.
bool IsKnownFilter(std::string_view name);
bool IsKnownTest(std::string_view name);
bool IsKnownFunction(std::string_view name);
bool IsKnownMethod(std::string_view name);
bool FilterTakesNamed(std::string_view filter, std::string_view argument);

absl::StatusOr<Value> ApplyFilter(std::string_view name, const Value& value, const Arguments& args,
                                  Budget& budget);
absl::StatusOr<bool> ApplyTest(std::string_view name, const Value& value, const Arguments& args,
                               Budget& budget);
absl::StatusOr<Value> CallMethod(const Value& self, const std::string& name, const Arguments& args,
                                 Budget& budget);

// object.name and object[key]; undefined when there is no such thing.
absl::StatusOr<Value> GetAttribute(const Value& object, const std::string& name);
absl::StatusOr<Value> GetItem(const Value& object, const Value& key, Budget& budget);

}  // namespace lynx::text::jinja
