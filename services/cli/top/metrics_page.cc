#include "services/cli/top/metrics_page.h"

#include <cmath>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace lynx::cli {
namespace {

std::optional<double> ParseValue(std::string_view text) {
  double value = 0;
  if (!absl::SimpleAtod(absl::string_view(text.data(), text.size()), &value)) return std::nullopt;
  return value;
}

// What stands from `at` on up to the closing quote, which `at` is left behind.
std::optional<std::string> ParseQuoted(std::string_view text, size_t& at) {
  std::string value;
  while (at < text.size() && text[at] != '"') {
    if (text[at] == '\\' && at + 1 < text.size()) {
      ++at;
      value += text[at] == 'n' ? '\n' : text[at];
    } else {
      value += text[at];
    }
    ++at;
  }
  if (at == text.size()) return std::nullopt;
  ++at;
  return value;
}

// From behind the opening brace; `at` is left behind the closing one.
std::optional<MetricsPage::Labels> ParseLabels(std::string_view text, size_t& at) {
  MetricsPage::Labels labels;
  while (at < text.size() && text[at] != '}') {
    const size_t equals = text.find("=\"", at);
    if (equals == std::string_view::npos) return std::nullopt;
    const std::string name(text.substr(at, equals - at));
    at = equals + 2;
    std::optional<std::string> value = ParseQuoted(text, at);
    if (!value.has_value()) return std::nullopt;
    labels.emplace(name, *std::move(value));
    if (at < text.size() && text[at] == ',') ++at;
  }
  if (at == text.size()) return std::nullopt;
  ++at;
  return labels;
}

bool Has(const MetricsPage::Labels& labels, const MetricsPage::Labels& wanted) {
  for (const auto& [name, value] : wanted) {
    const auto it = labels.find(name);
    if (it == labels.end() || it->second != value) return false;
  }
  return true;
}

}  // namespace

MetricsPage MetricsPage::Parse(std::string_view text) {
  MetricsPage page;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    size_t at = line.find_first_of("{ ");
    if (line.empty() || line[0] == '#' || at == std::string_view::npos) continue;
    const std::string name(line.substr(0, at));
    std::optional<Labels> labels = Labels();
    if (line[at] == '{') labels = ParseLabels(line, ++at);
    if (!labels.has_value() || at >= line.size()) continue;
    std::string_view rest = line.substr(at);
    rest.remove_prefix(std::min(rest.size(), rest.find_first_not_of(' ')));
    const std::optional<double> value = ParseValue(rest.substr(0, rest.find(' ')));
    if (value.has_value()) page.series_.emplace(name, Series{*std::move(labels), *value});
  }
  return page;
}

double MetricsPage::Sum(const std::string& name, const Labels& labels) const {
  double sum = 0;
  const auto [begin, end] = series_.equal_range(name);
  for (auto it = begin; it != end; ++it) {
    if (Has(it->second.labels, labels)) sum += it->second.value;
  }
  return sum;
}

std::map<double, double> MetricsPage::Buckets(const std::string& name) const {
  std::map<double, double> buckets;
  const auto [begin, end] = series_.equal_range(name + "_bucket");
  for (auto it = begin; it != end; ++it) {
    const auto le = it->second.labels.find("le");
    if (le == it->second.labels.end()) continue;
    const std::optional<double> bound = ParseValue(le->second);
    if (bound.has_value()) buckets[*bound] += it->second.value;
  }
  return buckets;
}

double QuantileBetween(const MetricsPage& before, const MetricsPage& after,
                       const std::string& histogram, double share) {
  const std::map<double, double> earlier = before.Buckets(histogram);
  std::map<double, double> seen = after.Buckets(histogram);
  for (auto& [bound, count] : seen) {
    const auto it = earlier.find(bound);
    if (it != earlier.end()) count -= it->second;
  }
  if (seen.empty() || !(seen.rbegin()->second > 0)) return -1;
  const double rank = share * seen.rbegin()->second;
  double low = 0;
  double below = 0;
  for (const auto& [bound, count] : seen) {
    if (count >= rank && count > below) {
      return std::isinf(bound) ? low : low + (bound - low) * (rank - below) / (count - below);
    }
    low = bound;
    below = count;
  }
  return low;
}

}  // namespace lynx::cli
